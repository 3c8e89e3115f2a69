"""Blocks of queries and keys: which of them meet, and what adds to or restricts their logits."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.nn import masks

Extra = Callable[[Any], tuple[jax.Array | None, jax.Array | None]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known before the arrays are."""

    chunk: int  # queries at a time
    block: int  # keys at a time
    scale: float
    softcap: float
    causal: bool
    window: int
    encoding: Any  # the graphdef of a position encoding that adds a bias or restricts; or None
    by_row: bool  # one row of the batch after another, or all of them at once


class Places(NamedTuple):
    """Of every query and key, what decides whether they meet; arrays of one row or of all."""

    q_order: jax.Array
    k_order: jax.Array
    q_segments: jax.Array
    k_segments: jax.Array
    k_prefix: jax.Array | None
    q_positions: Any  # None where no encoding asks for them
    k_positions: Any


def even(length: int, most: int) -> int:
    """The smallest multiple of 8 of which as few as with `most` cover the length."""
    parts = -(-length // most)
    return -(-length // (8 * parts)) * 8


def visible(plan: Plan, places: Places) -> tuple[jax.Array, jax.Array]:
    """The first block of keys that a chunk of queries may see and the one after the last.

    int32[B, chunks] each. They are ranges, so a block within them may still be masked entirely.
    """
    q_real, k_real = places.q_segments != 0, places.k_segments != 0

    def extremes(x: jax.Array, real: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        """The least and the greatest among the real tokens of each part: [B, parts]."""
        parts, real = x.reshape(len(x), -1, size), real.reshape(len(x), -1, size)
        low = jnp.where(real, parts, jnp.iinfo(jnp.int32).max // 2).min(-1)
        return low, jnp.where(real, parts, -1).max(-1)

    def pairs(q: jax.Array, k: jax.Array) -> tuple[tuple[jax.Array, ...], ...]:
        low_q, high_q = extremes(q, q_real, plan.chunk)
        low_k, high_k = extremes(k, k_real, plan.block)
        return (low_q[..., None], high_q[..., None]), (low_k[:, None], high_k[:, None])

    (low_q, high_q), (low_k, high_k) = pairs(places.q_segments, places.k_segments)
    meets = (low_q <= high_k) & (low_k <= high_q)
    (low_q, high_q), (low_k, high_k) = pairs(places.q_order, places.k_order)
    if plan.causal:
        past = low_k <= high_q
        if places.k_prefix is not None:
            prefix = places.k_prefix.reshape(len(meets), 1, -1, plan.block).any(-1)
            past |= prefix
        meets &= past
    if plan.window:
        meets &= (low_q - high_k < plan.window) & (low_k - high_q < plan.window)
    count = meets.shape[-1]
    first = jnp.argmax(meets, -1)
    after = jnp.where(meets.any(-1), count - jnp.argmax(meets[..., ::-1], -1), 0)
    return first.astype(jnp.int32), after.astype(jnp.int32)


def meeting(plan: Plan, places: Places, i: Any, j: Any) -> tuple[jax.Array, Extra | None]:
    """bool[l, s] of chunk i and block j of one row: who may attend to whom.

    Also the bias and what the position encoding allows, each [H or 1, l, s], as a function of its
    parameters; None where there is no encoding that has either.
    """
    q, k = _part(places, "q", i, plan.chunk), _part(places, "k", j, plan.block)
    prefix = None if k.k_prefix is None else k.k_prefix[None]
    view = masks.Visibility(
        q.q_order[None],
        k.k_order[None],
        q.q_segments[None],
        k.k_segments[None],
        plan.causal,
        prefix,
        plan.window,
    )
    mask = masks.attention_mask(view)[0]

    def extra(terms: Any) -> tuple[Any, Any]:
        encoding = nnx.merge(plan.encoding, terms)
        at = q.q_positions[None], k.k_positions[None]
        bias, allow = encoding.bias(*at), encoding.allow(*at)
        return (None if bias is None else bias[0]), (None if allow is None else allow[0])

    return mask, (None if plan.encoding is None else extra)


def _part(places: Places, side: str, number: Any, size: int) -> Places:
    """The places of one chunk of queries or block of keys; the other side stays."""
    mine = {name: x for name, x in places._asdict().items() if name.startswith(side)}
    parts = {n: None if x is None else take(x, number, size, 0) for n, x in mine.items()}
    return places._replace(**parts)


def take(x: jax.Array, number: Any, size: int, axis: int) -> jax.Array:
    """Part `number` of those of this size along an axis."""
    return jax.lax.dynamic_slice_in_dim(x, number * size, size, axis)
