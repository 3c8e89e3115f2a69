"""Many prompts in batches: each as if it were alone."""

import jax
import numpy as np
import pytest

from jaxformer.data.tasks.agreement import agreement_tokenizer
from jaxformer.generation import Greedy, Temperature, answer, continue_text
from jaxformer.generation.batches import generate_batches
from tests import builders

WORDS = agreement_tokenizer()
TEXTS = ["the boy", "the old dogs near the trees", "dogs", "the boys", "the old boy near dogs"]


def make_model(**changes):
    cfg = builders.model_config(vocab_size=WORDS.vocab_size, num_layers=1, **changes)
    return builders.make_model(cfg, seed=5)


def ids_of(texts, before=(WORDS.bos_id,), after=()):
    return [np.array([*before, *WORDS.encode(text), *after], np.int32) for text in texts]


def outputs(model, prompts, rows=None, batch_size=2, sampler=None, max_new_tokens=7, **how):
    found = {}
    for batch, outs in generate_batches(
        model,
        WORDS,
        prompts,
        range(len(prompts)) if rows is None else rows,
        max_new_tokens=max_new_tokens,
        sampler=sampler or Temperature(1.2),
        key=jax.random.key(3),
        batch_size=batch_size,
        **how,
    ):
        found |= dict(zip(batch, outs, strict=True))
    return found


def test_neither_the_batch_size_nor_which_rows_are_left_changes_an_output():
    model, prompts = make_model(), ids_of(TEXTS)
    found = outputs(model, prompts)
    assert sorted(found) == list(range(5))
    assert len({one.text for one in found.values()}) >= 4
    for other in (
        outputs(model, prompts, batch_size=1),
        outputs(model, prompts, batch_size=32),
        outputs(model, prompts, rows=[4, 1]),
    ):
        for row, one in other.items():
            assert one[:2] + one[3:] == found[row][:2] + found[row][3:]
            assert one.logprob == pytest.approx(found[row].logprob, rel=1e-5)


def test_outputs_are_the_continuations_alone():
    model = make_model()
    found = outputs(model, ids_of(TEXTS), sampler=Greedy())
    for row, text in enumerate(TEXTS):
        (whole,) = continue_text(
            model,
            WORDS,
            [text],
            max_new_tokens=7,
            sampler=Greedy(),
            key=jax.random.key(0),
            add_bos=True,
        )
        assert text + found[row].text == whole
        assert found[row].num_tokens == 7 - (7 - len(found[row].text.split())) + found[row].ended
        assert found[row].logprob < 0


def test_a_prompt_ends_where_a_learned_table_does():
    found = outputs(make_model(), ids_of(TEXTS), max_new_tokens=100)
    for row, ids in enumerate(ids_of(TEXTS)):
        assert found[row].num_tokens <= 16 - len(ids)
        assert found[row].ended or found[row].num_tokens == 16 - len(ids)


def test_sources_are_answered():
    model = make_model(architecture="encoder_decoder")
    found = outputs(
        model,
        ids_of(TEXTS, (), (WORDS.eos_id,)),
        sampler=Greedy(),
        batch_size=3,
        repetition_penalty=1.5,
    )
    wanted = answer(
        model,
        WORDS,
        TEXTS,
        max_new_tokens=7,
        sampler=Greedy(),
        key=jax.random.key(0),
        add_bos=False,
        add_eos=True,
        repetition_penalty=1.5,
    )
    assert [found[row].text for row in range(5)] == wanted
