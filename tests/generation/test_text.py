"""From text to text."""

import jax
import numpy as np
import pytest

from jaxformer.data.tasks.agreement import agreement_tokenizer
from jaxformer.errors import UserError
from jaxformer.generation import Greedy, continue_text
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
