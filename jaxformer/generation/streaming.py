"""Text as it is generated, in pieces that hold whole characters."""

import itertools
from collections.abc import Iterable, Iterator

import jax
import numpy as np
from flax import nnx

from jaxformer.generation.generate import stream
from jaxformer.generation.sampling import Sampler
from jaxformer.generation.text import Tokenizer, prompt_inputs, source_inputs

HALF = "\ufffd"  # what bytes decode to that are no character, or not one yet
EVERY = 4  # tokens


def stream_text(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    add_bos: bool,
    prefix: bool = False,
    repetition_penalty: float = 1.0,
) -> Iterator[str]:
    """The prompt, then its continuation as it comes: together what `continue_text` gives."""
    given = prompt_inputs(model, tokenizer, [prompt], max_new_tokens, add_bos=add_bos)
    how = {"prefix": prefix, "repetition_penalty": repetition_penalty}
    found = stream(model, **given, sampler=sampler, key=key, **how, every=EVERY)
    before = given["prompts_BP"][0, : given["lengths_B"][0]]
    rows = (np.concatenate([before, out.tokens[0, : out.lengths[0]]]) for out in found)
    yield from pieces(tokenizer, itertools.chain([before], rows))


def stream_answer(
    model: nnx.Module,
    tokenizer: Tokenizer,
    source: str,
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    add_bos: bool,
    add_eos: bool,
    repetition_penalty: float = 1.0,
) -> Iterator[str]:
    """The target of a source as it comes: together what `answer` gives."""
    framed = {"add_bos": add_bos, "add_eos": add_eos}
    given = source_inputs(model, tokenizer, [source], max_new_tokens, **framed)
    how = {"repetition_penalty": repetition_penalty, "every": EVERY}
    found = stream(model, **given, sampler=sampler, key=key, **how)
    yield from pieces(tokenizer, (out.tokens[0, : out.lengths[0]] for out in found))


def pieces(tokenizer: Tokenizer, rows: Iterable[np.ndarray]) -> Iterator[str]:
    """What is new of a text whose ids become more and more; together all of its last state.

    Bytes of a character that is not whole yet wait. Where a tokenizer changes text that was given
    already, its new form follows on a new line at the end.
    """
    shown = text = ""
    for ids in rows:
        text = tokenizer.decode(ids)
        whole = text.rstrip(HALF)
        if len(whole) > len(shown) and whole.startswith(shown):
            yield whole[len(shown) :]
            shown = whole
    if text.startswith(shown):
        yield text[len(shown) :]
    else:
        yield f"\n{text}"
