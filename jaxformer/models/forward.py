"""A batch through whichever architecture it was made for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.models.decoder import Decoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.lstm import Lstm
from jaxformer.models.output import Output
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.positions.sources import give_ids


def forward(
    model: Decoder | Encoder | EncoderDecoder | Lstm,
    batch: Mapping[str, jax.Array],
    *,
    key: RowKey | jax.Array | None = None,
    capture: Sequence[str] = (),
) -> Output:
    """Runs the model on the arrays of a batch that are its inputs.

    All batches have tokens, segment_ids and positions [B, L]; those of an encoder-decoder also
    source, source_segment_ids and source_positions [B, S]; those of a prefix language model also
    prefix bool[B, L]. The model's position source gives them their ids here: a key is the step's,
    in training; without one this is an evaluation, and `rows` int32[B] numbers its examples.
    """
    key = RowKey.of(key, len(batch["tokens"]))
    batch = give_ids(model.config, batch, key)
    tokens_BL, segment_ids_BL, positions_BL = (
        batch[name] for name in ("tokens", "segment_ids", "positions")
    )
    if isinstance(model, EncoderDecoder):
        return model(
            batch["source"],
            tokens_BL,
            batch["source_segment_ids"],
            segment_ids_BL,
            batch["source_positions"],
            positions_BL,
            key=key,
            capture=capture,
        )
    if isinstance(model, Encoder):
        return model(tokens_BL, segment_ids_BL, positions_BL, key=key, capture=capture)
    return model(
        tokens_BL,
        segment_ids_BL,
        positions_BL,
        key=key,
        capture=capture,
        prefix=batch.get("prefix"),
    )


def sums_over(
    model: Decoder | Encoder | EncoderDecoder | Lstm,
    out: Output,
    targets_BL: jax.Array,
    weights_BL: jax.Array,
    sums: Callable[..., Any],
    teacher: tuple[Any, Output] | None = None,
) -> Any:
    """sums(logits, targets, weights), a tree of scalars that add up over positions.

    Of a `teacher`, another model and what it gave for the same batch, `sums` takes the logits too.

    With `model.logit_chunk` never more than that many positions of each row have logits at a time:
    they are made from `out.hidden`, forgotten, and made again for gradients.
    """
    chunk = model.config.logit_chunk
    others = () if teacher is None else (teacher,)
    if not chunk:
        return sums(out.logits, targets_BL, weights_BL, *(its.logits for _, its in others))
    parts = -(-targets_BL.shape[1] // chunk)

    @jax.checkpoint
    def part(hidden: jax.Array, targets: jax.Array, weights: jax.Array, *theirs: jax.Array) -> Any:
        logits = [other.readout(h) for (other, _), h in zip(others, theirs, strict=True)]
        return sums(model.readout(hidden), targets, weights, *logits)

    hidden = (its.hidden for _, its in others)
    xs = tuple(in_parts(x, parts) for x in (out.hidden, targets_BL, weights_BL, *hidden))
    shapes = jax.eval_shape(part, *(x[0] for x in xs))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(
        lambda carry, x: (jax.tree.map(jnp.add, carry, part(*x)), None), zeros, xs
    )
    return total


def in_parts(x: jax.Array, parts: int) -> jax.Array:
    """[parts, B, L / parts, …] of [B, L, …], zeros behind: each part has positions from all over.

    So each device that holds a stretch of the rows has its share of every part.
    """
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % parts), *[(0, 0)] * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(len(x), -1, parts, *x.shape[2:]), 2, 0)
