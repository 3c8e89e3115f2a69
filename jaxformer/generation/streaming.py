"""Text as it is generated, in pieces that hold whole characters."""

import itertools
from collections.abc import Iterable, Iterator

import jax
import numpy as np
from flax import nnx

from jaxformer.generation.generate import stream
from jaxformer.generation.inputs import room
from jaxformer.generation.sampling import Sampler
from jaxformer.generation.text import Tokenizer, encode_prompts, encode_sources

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
    tokens_BP, lengths_B = encode_prompts(tokenizer, [prompt], add_bos=add_bos)
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    found = stream(
        model,
        tokens_BP,
        lengths_B,
        max_new_tokens=max(1, room(config, int(lengths_B.max()), max_new_tokens)),
        sampler=sampler,
        key=key,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        prefix=prefix,
        repetition_penalty=repetition_penalty,
        every=EVERY,
    )
    before = tokens_BP[0, : lengths_B[0]]
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
    source_BS, segment_ids_BS = encode_sources(
        tokenizer, [source], add_bos=add_bos, add_eos=add_eos
    )
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    found = stream(
        model,
        source_BS=source_BS,
        source_segment_ids=segment_ids_BS,
        max_new_tokens=max(1, room(config, 1, max_new_tokens)),
        sampler=sampler,
        key=key,
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.start_id,
        pad_id=tokenizer.pad_id,
        repetition_penalty=repetition_penalty,
        every=EVERY,
    )
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
