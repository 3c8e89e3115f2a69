"""Scores of given continuations: how probable a model finds them, and whether it would say them.

One forward pass a batch, targets given. Continuations of like length share a batch, and widths are
bucketed as for generation, so that few shapes are compiled; a score depends neither on the batch
size nor on what else is scored. Logits exist for a few positions at a time, and only where there is
something to score.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation.inputs import bucket, check_ids
from jaxformer.generation.text import Tokenizer, frame_sources
from jaxformer.models import forward, in_parts
from jaxformer.nn.positions.sources import check_any_text, document_limit
from jaxformer.sharding import mesh_of, put_whole, replicate, using

LOGITS = 2**24  # at a time: 64 MiB

Ids = Sequence[int] | np.ndarray


@dataclasses.dataclass(frozen=True)
class Scores:
    """One entry for each continuation: log-probability in nats float64[n], tokens int64[n] twice.

    `num_greedy` counts the tokens that are the most probable one after all that precedes them.
    """

    logprobs: np.ndarray
    num_tokens: np.ndarray
    num_greedy: np.ndarray

    @property
    def is_greedy(self) -> np.ndarray:
        """bool[n]: greedy generation would give the continuation."""
        return self.num_greedy == self.num_tokens


def score(
    model: nnx.Module,
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    *,
    bos_id: int = 1,
    prefix: bool = False,
    batch_size: int = 32,
) -> Scores:
    """The summed log-probability of the tokens of each continuation, given its prompt.

    For an encoder-decoder a prompt is a source, and the target starts with `bos_id`. The end token
    counts where a continuation has it. `prefix` as for `generate`; positions that are drawn are so
    by an example's number. Raises UserError for an empty prompt or continuation, ids outside the
    vocabulary, more tokens than a learned position table holds, or a model without a next token.
    """
    found = Scores(*(np.zeros(len(prompts), kind) for kind in (np.float64, np.int64, np.int64)))
    for rows, part in score_batches(
        model, prompts, continuations, bos_id=bos_id, prefix=prefix, batch_size=batch_size
    ):
        for name in ("logprobs", "num_tokens", "num_greedy"):
            getattr(found, name)[rows] = getattr(part, name)
    return found


def score_batches(
    model: nnx.Module,
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    *,
    bos_id: int = 1,
    prefix: bool = False,
    batch_size: int = 32,
) -> Iterator[tuple[np.ndarray, Scores]]:
    """The same batch by batch, shortest first: numbers of the examples and their scores.

    All input is checked before the first is computed.
    """
    config: Any = model.config  # pyright: ignore[reportAttributeAccessIssue]
    _check(config, prompts, continuations, batch_size)
    both = config.architecture == "encoder_decoder"
    sizes = [(len(p) + len(c), len(c)) for p, c in zip(prompts, continuations, strict=True)]
    shortest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    graphdef, state = nnx.split(model)
    params, mesh = nnx.to_pure_dict(state), mesh_of(state)
    rows_of_a_batch = min(batch_size, len(sizes))
    for start in range(0, len(sizes), batch_size):
        rows = shortest_first[start : start + batch_size]
        pairs = [(np.asarray(prompts[row]), np.asarray(continuations[row])) for row in rows]
        batch = _targets(pairs, bos_id) if both else _continued(pairs, prefix)
        batch = {name: _fill(x, rows_of_a_batch) for name, x in batch.items()}
        batch["rows"] = _fill(np.array(rows, np.int32), rows_of_a_batch)
        with using(mesh):
            logprobs_BM, right_BM = jax.device_get(
                _score(params, put_whole(mesh, batch), graphdef=graphdef)
            )
        number = len(rows)
        lengths_B = np.array([len(ids) for _, ids in pairs])
        counted_BM = np.arange(logprobs_BM.shape[1]) < lengths_B[:, None]
        logprobs_BM = logprobs_BM[:number].astype(np.float64)
        logprobs_B = np.where(counted_BM, logprobs_BM, 0).sum(1)
        yield np.array(rows), Scores(logprobs_B, lengths_B, (right_BM[:number] & counted_BM).sum(1))


def score_texts(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    add_bos: bool,
    add_eos: bool,
    prefix: bool = False,
    batch_size: int = 32,
) -> Scores:
    """`score` of texts: prompts framed as in training, continuations of a target up to its end.

    Both are encoded apart, so that a continuation which begins a word begins with its space. The
    end token counts for an encoder-decoder alone.
    """
    encoded = encode_pairs(model, tokenizer, prompts, continuations, add_bos, add_eos)
    return score(model, *encoded, bos_id=tokenizer.start_id, prefix=prefix, batch_size=batch_size)


def encode_pairs(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    continuations: Sequence[str],
    add_bos: bool,
    add_eos: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ids of prompts and continuations as `score_texts` has them."""
    config: Any = model.config  # pyright: ignore[reportAttributeAccessIssue]
    both = config.architecture == "encoder_decoder"
    return (
        frame_sources(tokenizer, prompts, add_bos, add_eos and both),
        frame_sources(tokenizer, continuations, False, both),
    )


@functools.partial(jax.jit, static_argnames=("graphdef",))
def _score(
    params: Any, batch: dict[str, jax.Array], *, graphdef: Any
) -> tuple[jax.Array, jax.Array]:
    """float32[B, M] log-probabilities of `targets`, at `at` of each row, and bool[B, M] if best."""
    model: Any = nnx.merge(graphdef, params)
    inputs = {name: x for name, x in batch.items() if name not in ("at", "targets")}
    hidden_BLD = forward(model, inputs).hidden  # its logits are dead code
    hidden_BMD = jnp.take_along_axis(hidden_BLD, batch["at"][..., None], axis=1)
    batch_size, width = batch["targets"].shape
    most = max(1, LOGITS // (batch_size * model.config.vocab_size))
    parts = -(-width // min(width, most))

    def part(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden_BMD, targets_BM = pair
        logits_BMV = model.readout(hidden_BMD)
        logits_BM = jnp.take_along_axis(logits_BMV, targets_BM[..., None], axis=-1)[..., 0]
        logprobs_BM = logits_BM - jax.nn.logsumexp(logits_BMV, axis=-1)
        return logprobs_BM, logits_BMV.argmax(-1) == targets_BM

    def joined(x: jax.Array) -> jax.Array:
        return replicate(jnp.moveaxis(x, 0, 2).reshape(batch_size, -1)[:, :width])

    pairs = tuple(in_parts(x, parts) for x in (hidden_BMD, batch["targets"]))
    logprobs, right = jax.lax.map(part, pairs)
    return joined(logprobs), joined(right)


def _continued(pairs: Sequence[tuple[np.ndarray, np.ndarray]], prefix: bool) -> dict[str, Any]:
    """Rows of a decoder: prompt and continuation, all but the last token."""
    batch = _row_arrays([np.concatenate(pair)[:-1] for pair in pairs])
    starts = [len(prompt) - 1 for prompt, _ in pairs]
    if prefix:
        width = batch["tokens"].shape[1]
        batch["prefix"] = np.arange(width) <= np.array(starts)[:, None]
    return batch | _places([ids for _, ids in pairs], starts)


def _targets(pairs: Sequence[tuple[np.ndarray, np.ndarray]], bos_id: int) -> dict[str, Any]:
    """Rows of an encoder-decoder: a source, and a target behind its first token."""
    source = _row_arrays([ids for ids, _ in pairs])
    batch = _row_arrays([np.concatenate([[bos_id], ids])[:-1] for _, ids in pairs])
    batch |= {
        "source": source["tokens"],
        "source_segment_ids": source["segment_ids"],
        "source_positions": source["positions"],
    }
    return batch | _places([ids for _, ids in pairs], [0] * len(pairs))


def _row_arrays(rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """tokens, segment_ids and positions int32[B, L], L in its bucket."""
    tokens_BL, real_BL = np.zeros((2, len(rows), bucket(max(map(len, rows)))), np.int32)
    for row, ids in enumerate(rows):
        tokens_BL[row, : len(ids)], real_BL[row, : len(ids)] = ids, 1
    positions_BL = np.arange(tokens_BL.shape[1], dtype=np.int32) * real_BL
    return {"tokens": tokens_BL, "segment_ids": real_BL, "positions": positions_BL}


def _places(continuations: Sequence[np.ndarray], starts: Sequence[int]) -> dict[str, np.ndarray]:
    """`targets` int32[B, M] and `at`, where in a row their logits are; 0 beyond the last."""
    width = bucket(max(map(len, continuations)))
    targets_BM, at_BM = np.zeros((2, len(starts), width), np.int32)
    for row, (ids, start) in enumerate(zip(continuations, starts, strict=True)):
        targets_BM[row, : len(ids)] = ids
        at_BM[row, : len(ids)] = start + np.arange(len(ids))
    return {"targets": targets_BM, "at": at_BM}


def _fill(x: np.ndarray, rows: int) -> np.ndarray:
    """Rows of padding behind a last batch, so that all have one shape."""
    return np.pad(x, ((0, rows - len(x)), *[(0, 0)] * (x.ndim - 1)))


def _check(
    config: Any, prompts: Sequence[Ids], continuations: Sequence[Ids], batch_size: int
) -> None:
    if config.architecture == "encoder":
        what = "is encoder, which predicts no next token"
        raise UserError("model.architecture", what, "score with a decoder or encoder_decoder")
    check_any_text(config)
    if len(prompts) != len(continuations):
        what = f"are {len(prompts)} for {len(continuations)} continuations"
        raise UserError("prompts", what, "give as many of both")
    if batch_size < 1:
        raise UserError("batch_size", f"is {batch_size}", "give 1 or more")
    (most, field), both = document_limit(config), config.architecture == "encoder_decoder"
    first = "source" if both else "prompt"
    for row, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        for name, ids in ((first, prompt), ("continuation", continuation)):
            if not len(ids):
                mend = "give it at least one token, such as the one that starts a document"
                raise UserError(name, f"number {row} is empty", mend)
            check_ids(config, name, row, np.asarray(ids))
        read = (len(prompt), len(continuation)) if both else (len(prompt) + len(continuation) - 1,)
        if most and max(read) > most:
            name = first if read[0] > most and both else "continuation"
            what = f"number {row} takes {max(read)} tokens to read"
            raise UserError(name, what, f"{field} allows {most}: shorten it")
