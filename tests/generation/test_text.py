"""From text to text."""

import jax
import numpy as np
import pytest

from jaxformer.data.tasks.agreement import agreement_tokenizer
from jaxformer.errors import UserError
from jaxformer.generation import (
    Greedy,
    LengthPenalty,
    Temperature,
    answer,
    continue_text,
    translate,
)
from jaxformer.generation.text import encode_prompts
from tests import builders

TOKENIZER = agreement_tokenizer()


def ask(prompts, add_bos=True, max_new_tokens=5):
    cfg = builders.model_config(vocab_size=TOKENIZER.vocab_size, num_layers=1)
    return continue_text(
        builders.make_model(cfg),
        TOKENIZER,
        prompts,
        max_new_tokens=max_new_tokens,
        sampler=Greedy(),
        key=jax.random.key(0),
        add_bos=add_bos,
    )


def test_each_prompt_is_continued_as_if_it_were_alone():
    prompts = ["the boy", "the old dogs near the trees", ""]
    texts = ask(prompts)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.startswith(prompt)
        assert len(text.split()) <= len(prompt.split()) + 5
        assert text == ask([prompt])[0]
    continuations = {text.removeprefix(p) for p, text in zip(prompts, texts, strict=True)}
    assert len(continuations) == 3


def test_the_start_token_is_added_once():
    tokens_BP, lengths_B = encode_prompts(TOKENIZER, ["the boy", ""], add_bos=True)
    assert tokens_BP.dtype == np.int32
    assert lengths_B.tolist() == [3, 1]
    assert tokens_BP[:, 0].tolist() == [TOKENIZER.bos_id] * 2
    assert TOKENIZER.bos_id not in tokens_BP[:, 1:]
    plain_BP, lengths_B = encode_prompts(TOKENIZER, ["the boy"], add_bos=False)
    assert plain_BP[0].tolist() == TOKENIZER.encode("the boy").tolist()


def test_text_ends_where_a_learned_table_does():
    (text,) = ask(["the boy"], max_new_tokens=100)
    assert len(text.split()) <= 15  # and <s>
    assert text.startswith(ask(["the boy"])[0])


@pytest.mark.parametrize(
    ("prompt", "add_bos", "message"),
    [
        ("the wombat", True, "'wombat'"),
        ("", False, "prompt: number 0 is empty"),
        ("the boy " * 8, True, "model.max_length: is 16"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(prompt, add_bos, message):
    with pytest.raises(UserError, match=message):
        ask([prompt], add_bos)


def encoder_decoder(**changes):
    cfg = builders.model_config(
        architecture="encoder_decoder", vocab_size=TOKENIZER.vocab_size, num_layers=1, **changes
    )
    return builders.make_model(cfg, seed=5)


def translated(sources, **settings):
    settings = {"extra_tokens": 10, "batch_size": 3, "add_bos": False, "add_eos": True} | settings
    return translate(encoder_decoder(), TOKENIZER, sources, **settings)


SENTENCES = ["the boy", "the old dogs near the trees", "the boys", "dogs", "the old boy near dogs"]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translation_depends_on_its_source_alone(beam_size):
    settings = {"beam_size": beam_size, "length_penalty": LengthPenalty("gnmt", 0.6)}
    together = translated(SENTENCES, **settings)
    assert len(set(together)) == len(SENTENCES)
    assert translated(SENTENCES[::-1], **settings) == together[::-1]
    assert translated(SENTENCES, batch_size=2, **settings) == together
    for source, text in zip(SENTENCES, together, strict=True):
        assert len(text.split()) <= len(source.split()) + 1 + 10
    assert translated([], **settings) == []


def test_randomized_positions_are_drawn_by_the_number_of_the_sentence():
    """Not by its place in a batch, where its length puts it."""
    model = encoder_decoder(**{"position.source.kind": "randomized", "max_length": 40})
    settings = {"extra_tokens": 10, "add_bos": False, "add_eos": True}
    together = translate(model, TOKENIZER, SENTENCES, batch_size=3, **settings)
    twice = translate(model, TOKENIZER, SENTENCES[:1] * 5, batch_size=3, **settings)
    assert twice[0] == together[0]
    assert len(set(twice)) > 1


def test_sources_that_cannot_be_translated_are_refused():
    with pytest.raises(UserError, match="'wombat'"):
        translated(["the wombat"])
    with pytest.raises(UserError, match=r"number 1 has 17 tokens, model\.max_length allows 16"):
        translated(["the boy", "the boy " * 8])
    assert len(translated(["the boy " * 7])[0].split()) <= 15  # the learned table ends


def answered(sources, sampler, max_new_tokens=100):
    return answer(
        encoder_decoder(),
        TOKENIZER,
        sources,
        max_new_tokens=max_new_tokens,
        sampler=sampler,
        key=jax.random.key(0),
        add_bos=False,
        add_eos=True,
    )


def test_an_answer_is_the_translation_or_a_sample():
    """Both end where the learned table does; `extra_tokens` alone would end later."""
    greedy = answered(SENTENCES, Greedy())
    assert greedy == translated(SENTENCES, extra_tokens=50)
    assert answered(SENTENCES, Temperature(1.0)) != greedy
    short = answered(SENTENCES, Greedy(), 9)
    assert short != greedy
    for text, whole in zip(short, greedy, strict=True):
        assert len(text.split()) <= 9
        assert whole.startswith(text)


def test_sources_without_an_answer_are_refused():
    with pytest.raises(UserError, match="'wombat'"):
        answered(["the wombat"], Greedy())
    with pytest.raises(UserError, match=r"source: number 0 has 17 tokens"):
        answered(["the boy " * 8], Greedy())
