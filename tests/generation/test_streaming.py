"""Text as it comes: whole characters, and together what comes at the end."""

import types

import jax
import numpy as np
import pytest

from configs import base
from jaxformer.data.tasks.agreement import agreement_tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.generation import (
    Temperature,
    answer,
    continue_text,
    stream_answer,
    stream_text,
)
from jaxformer.generation.streaming import pieces
from tests import builders

WORDS = agreement_tokenizer()
HOW = {"max_new_tokens": 9, "sampler": Temperature(1.2), "key": jax.random.key(1), "add_bos": True}


def byte_tokenizer():
    tokenizer = base.get_config().data.tokenizer
    tokenizer.update(kind="byte", vocab_size=0)
    return make_tokenizer(types.SimpleNamespace(**tokenizer.to_dict()), *[lambda: iter([])] * 2)


def growing(ids, step=1):
    return [np.array(ids[:end]) for end in [*range(step, len(ids), step), len(ids)]]


@pytest.mark.parametrize("step", [1, 2, 5])
def test_characters_of_several_bytes_come_whole(step):
    words, text = byte_tokenizer(), "naïve – 漢字 🙂 end"
    ids = words.encode(text)
    assert len(ids) > len(text)
    found = list(pieces(words, growing(ids, step)))
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found)
    if step == 1:
        assert "漢" in found
        assert "🙂" in found


def test_what_is_no_character_comes_in_the_end():
    words = byte_tokenizer()
    ids = [*words.encode("ab"), *words.encode("漢")[:2]]
    found = list(pieces(words, growing(ids)))
    assert found[:2] == ["a", "b"]
    assert "".join(found) == words.decode(ids)
    assert "\ufffd" in found[-1]
    inside = [*words.encode("漢")[:1], *words.encode("ab")]
    assert "".join(pieces(words, growing(inside))) == words.decode(inside)


def test_a_text_that_changes_is_given_again():
    words = types.SimpleNamespace(decode=lambda ids: ["do", "do n", "don't"][len(ids) - 1])
    assert "".join(pieces(words, growing([1, 2, 3]))) == "do n\ndon't"


def test_together_they_are_the_text():
    cfg = builders.model_config(vocab_size=WORDS.vocab_size, num_layers=1)
    model = builders.make_model(cfg)
    found = list(stream_text(model, WORDS, "the boy", **HOW))
    assert found[0] == "the boy"
    assert len(found) > 2
    (whole,) = continue_text(model, WORDS, ["the boy"], **HOW)
    assert "".join(found) == whole
    more = HOW | {"repetition_penalty": 5.0}
    (other,) = continue_text(model, WORDS, ["the boy"], **more)
    assert "".join(stream_text(model, WORDS, "the boy", **more)) == other != whole


def test_together_they_are_the_answer():
    cfg = builders.model_config(
        architecture="encoder_decoder", vocab_size=WORDS.vocab_size, num_layers=1
    )
    model, how = builders.make_model(cfg, seed=5), HOW | {"add_eos": True}
    found = list(stream_answer(model, WORDS, "the boy", **how))
    assert "".join(found) == answer(model, WORDS, ["the boy"], **how)[0]
