"""Continues text: tokenizer on both sides of `generate`."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from jaxformer.generation.generate import generate, room
from jaxformer.generation.sampling import Sampler


class Tokenizer(Protocol):
    """The part of `jaxformer.data.tokenizers.Tokenizer` that generation needs."""

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Any) -> str: ...


def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[str], *, add_bos: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded tokens_BP and lengths_B; `add_bos` starts each with one <s>.

    Raises UserError for characters or words that the tokenizer does not know.
    """
    rows = [tokenizer.encode(prompt) for prompt in prompts]
    if add_bos:
        rows = [np.concatenate([[tokenizer.bos_id], row]) for row in rows]
    lengths_B = np.array([len(row) for row in rows], np.int32)
    tokens_BP = np.zeros((len(rows), max(1, lengths_B.max())), np.int32)
    for row, tokens in enumerate(rows):
        tokens_BP[row, : len(tokens)] = tokens
    return tokens_BP, lengths_B


def continue_text(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    add_bos: bool,
) -> list[str]:
    """Each prompt with its continuation, special tokens dropped.

    Continues to the end token, or for `max_new_tokens`, or to the end of a learned position table.
    Raises UserError where such a table has no room after the longest prompt.
    """
    tokens_BP, lengths_B = encode_prompts(tokenizer, prompts, add_bos=add_bos)
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    out = generate(
        model,
        tokens_BP,
        lengths_B,
        max_new_tokens=max(1, room(config, int(lengths_B.max()), max_new_tokens)),
        sampler=sampler,
        key=key,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
    )
    return [
        tokenizer.decode(np.concatenate([tokens_BP[row, :p], out.tokens_BT[row, :n]]))
        for row, (p, n) in enumerate(zip(lengths_B, out.lengths_B, strict=True))
    ]
