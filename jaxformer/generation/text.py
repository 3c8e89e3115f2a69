"""From text to text: tokenizer on both sides of `generate` and `beam_search`."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation.beam import NO_PENALTY, LengthPenalty, beam_search
from jaxformer.generation.generate import generate
from jaxformer.generation.inputs import for_decoding, room
from jaxformer.generation.sampling import Greedy, Sampler
from jaxformer.nn.positions.sources import document_limit


class Tokenizer(Protocol):
    """The part of `jaxformer.data.tokenizers.Tokenizer` that generation needs."""

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    @property
    def start_id(self) -> int: ...

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
    return pad(rows)


def prompt_inputs(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_new_tokens: int,
    *,
    add_bos: bool,
) -> dict[str, Any]:
    """What `generate` and `stream` are given to continue texts; UserError as for the prompts."""
    tokens_BP, lengths_B = encode_prompts(tokenizer, prompts, add_bos=add_bos)
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "prompts_BP": tokens_BP,
        "lengths_B": lengths_B,
        "max_new_tokens": max(1, room(config, int(lengths_B.max()), max_new_tokens)),
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
    }


def source_inputs(
    model: nnx.Module,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    max_new_tokens: int,
    *,
    add_bos: bool,
    add_eos: bool,
) -> dict[str, Any]:
    """The same to answer sources, framed as in training."""
    source_BS, segment_ids_BS = encode_sources(tokenizer, sources, add_bos=add_bos, add_eos=add_eos)
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "source_BS": source_BS,
        "source_segment_ids": segment_ids_BS,
        "max_new_tokens": max(1, room(config, 1, max_new_tokens)),
        "eos_id": tokenizer.eos_id,
        "bos_id": tokenizer.start_id,
        "pad_id": tokenizer.pad_id,
    }


def continue_text(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    add_bos: bool,
    prefix: bool = False,
    repetition_penalty: float = 1.0,
) -> list[str]:
    """Each prompt with its continuation, special tokens dropped; as for `generate` otherwise.

    Continues to the end token, or for `max_new_tokens`, or to the end of a learned position table.
    Raises UserError where such a table has no room after the longest prompt.
    """
    given = prompt_inputs(model, tokenizer, prompts, max_new_tokens, add_bos=add_bos)
    how = {"prefix": prefix, "repetition_penalty": repetition_penalty}
    out = generate(model, **given, sampler=sampler, key=key, **how)
    befores = (ids[:n] for ids, n in zip(given["prompts_BP"], given["lengths_B"], strict=True))
    news = (ids[:n] for ids, n in zip(out.tokens, out.lengths, strict=True))
    return [tokenizer.decode(np.concatenate(pair)) for pair in zip(befores, news, strict=True)]


def answer(
    model: nnx.Module,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    add_bos: bool,
    add_eos: bool,
    repetition_penalty: float = 1.0,
) -> list[str]:
    """The target that an encoder-decoder gives to each source, special tokens dropped.

    It ends with the end token, after `max_new_tokens`, or where a learned position table does.
    Raises UserError for what the tokenizer does not know and for a source longer than such a table.
    """
    framed = {"add_bos": add_bos, "add_eos": add_eos}
    given = source_inputs(model, tokenizer, sources, max_new_tokens, **framed)
    out = generate(model, **given, sampler=sampler, key=key, repetition_penalty=repetition_penalty)
    return [tokenizer.decode(ids[:n]) for ids, n in zip(out.tokens, out.lengths, strict=True)]


def translate(
    model: nnx.Module,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    *,
    beam_size: int = 1,
    length_penalty: LengthPenalty = NO_PENALTY,
    extra_tokens: int = 50,
    batch_size: int = 64,
    add_bos: bool,
    add_eos: bool,
) -> list[str]:
    """The translation of each source: greedy for a beam of 1, else beam search.

    A translation has at most `extra_tokens` more tokens than its source (Vaswani et al. 2017 §6.1),
    fewer where a learned position table ends; `add_bos` and `add_eos` frame sources as in training.
    Batches hold sources of like length; neither they nor their size change a translation. Raises
    UserError for what the tokenizer does not know and for a source longer than such a table.
    """
    encoded = frame_sources(tokenizer, sources, add_bos, add_eos)
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    most, field = document_limit(config)
    for row, ids in enumerate(encoded):
        if most and len(ids) > most:
            what = f"number {row} has {len(ids)} tokens"
            raise UserError("source", what, f"{field} allows {most}: shorten it")
    model = for_decoding(model)
    shortest_first = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    texts = [""] * len(encoded)
    for start in range(0, len(encoded), batch_size):
        rows = shortest_first[start : start + batch_size]
        source_BS, lengths_B = pad([encoded[row] for row in rows])
        real_BS = np.arange(source_BS.shape[1]) < lengths_B[:, None]
        limits_B = [max(1, room(config, 1, length + extra_tokens)) for length in lengths_B]
        # A last batch is filled up, so that all have one shape, with rows that end at once.
        filling = ((0, min(batch_size, len(encoded)) - len(rows)), (0, 0))
        tokens = _decode(
            model,
            tokenizer,
            np.pad(source_BS, filling),
            np.pad(real_BS.astype(np.int32), filling),
            np.pad(limits_B, filling[0], constant_values=1),
            np.pad(rows, filling[0]),
            beam_size,
            length_penalty,
        )
        for row, ids in zip(rows, tokens, strict=False):
            texts[row] = tokenizer.decode(ids)
    return texts


def encode_sources(
    tokenizer: Tokenizer, sources: Sequence[str], *, add_bos: bool, add_eos: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded source_BS, framed as in training, and its segment ids; UserError as above."""
    source_BS, lengths_B = pad(frame_sources(tokenizer, sources, add_bos, add_eos))
    return source_BS, (np.arange(source_BS.shape[1]) < lengths_B[:, None]).astype(np.int32)


def frame_sources(
    tokenizer: Tokenizer, sources: Sequence[str], add_bos: bool, add_eos: bool
) -> list[np.ndarray]:
    """Ids of each source, framed as in training."""
    before = [tokenizer.bos_id] if add_bos else []
    after = [tokenizer.eos_id] if add_eos else []
    parts = ([before, tokenizer.encode(text), after] for text in sources)
    return [np.concatenate(part).astype(np.int32) for part in parts]


def pad(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded int32[B, L], L at least 1, and the length of each row."""
    lengths_B = np.array([len(row) for row in rows], np.int32)
    tokens_BL = np.zeros((len(rows), max(1, lengths_B.max())), np.int32)
    for row, tokens in enumerate(rows):
        tokens_BL[row, : len(tokens)] = tokens
    return tokens_BL, lengths_B


def _decode(
    model: nnx.Module,
    tokenizer: Tokenizer,
    source_BS: np.ndarray,
    segment_ids_BS: np.ndarray,
    limits_B: np.ndarray,
    rows_B: np.ndarray,
    beam_size: int,
    length_penalty: LengthPenalty,
) -> list[np.ndarray]:
    """The best target of each row."""
    if beam_size == 1:
        out = generate(
            model,
            source_BS=source_BS,
            source_segment_ids=segment_ids_BS,
            max_new_tokens=limits_B,
            sampler=Greedy(),
            key=jax.random.key(0),
            eos_id=tokenizer.eos_id,
            bos_id=tokenizer.start_id,
            pad_id=tokenizer.pad_id,
            rows_B=rows_B,
        )
        return [ids[:n] for ids, n in zip(out.tokens, out.lengths, strict=True)]
    found = beam_search(
        model,
        source_BS=source_BS,
        source_segment_ids=segment_ids_BS,
        beam_size=beam_size,
        max_new_tokens=limits_B,
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.start_id,
        pad_id=tokenizer.pad_id,
        length_penalty=length_penalty,
        rows_B=rows_B,
    )
    return [ids[:n] for ids, n in zip(found.tokens_BNT[:, 0], found.lengths_BN[:, 0], strict=True)]
