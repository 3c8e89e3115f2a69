"""Who may attend to whom. Every mask of the project is made here; True = may attend.

There is one idea of padding and packing: segment ids. 0 is padding, 1, 2, … are the documents of a
row, in order. Order within a row is counted over non-padding tokens, so padding anywhere, and a
cache that holds no padding, change nothing.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Visibility:
    """What decides attention between queries and keys, before any mask is made."""

    q_order_BL: jax.Array  # int32: place of a token among its row's non-padding tokens
    k_order_BS: jax.Array
    q_segment_ids_BL: jax.Array
    k_segment_ids_BS: jax.Array
    causal: bool
    k_prefix_BS: jax.Array | None = (
        None  # bool: keys that are visible to earlier tokens too (prefix LM)
    )
    window: int = 0  # attend to keys fewer than this many tokens away, the query included; 0: all
    aligned: bool = False  # queries and keys are the same tokens, each in the same place of a row


def attention_mask(visibility: Visibility) -> jax.Array:
    """bool[B, L, S]: same document, not padding, not later than the query if causal, near."""
    v = visibility
    q_segment_ids_BL1 = v.q_segment_ids_BL[..., None]
    k_segment_ids_B1S = v.k_segment_ids_BS[:, None]
    mask_BLS = (q_segment_ids_BL1 == k_segment_ids_B1S) & (k_segment_ids_B1S != 0)
    if v.causal:
        past_BLS = v.q_order_BL[..., None] >= v.k_order_BS[:, None]
        mask_BLS &= past_BLS if v.k_prefix_BS is None else past_BLS | v.k_prefix_BS[:, None]
    if v.window:
        mask_BLS &= jnp.abs(v.q_order_BL[..., None] - v.k_order_BS[:, None]) < v.window
    return mask_BLS


def by_place(visibility: Visibility) -> Visibility:
    """The same pairs, told by places in the row instead of orders where both decide alike.

    Places are known when the program is compiled, so no loop over pairs reads them from memory.
    """
    v = visibility
    if not (v.causal and v.aligned) or v.window:
        return v
    place_1L = jnp.arange(v.q_order_BL.shape[1])[None]
    return dataclasses.replace(v, q_order_BL=place_1L, k_order_BS=place_1L)


def order(segment_ids_BL: jax.Array) -> jax.Array:
    """int32[B, L]: how many non-padding tokens of the row come before each token."""
    real_BL = (segment_ids_BL != 0).astype(jnp.int32)
    return jnp.cumsum(real_BL, 1) - real_BL


def extents(positions_BL: jax.Array, segment_ids_BL: jax.Array) -> jax.Array:
    """int32[B, L]: the largest position in each token's document, plus 1.

    Segment ids must not decrease along a row, padding aside.
    """
    documents_BL = jax.lax.cummax(segment_ids_BL, axis=1)
    ids_BL = jnp.where(segment_ids_BL != 0, positions_BL, 0)

    def larger(a: Any, b: Any) -> Any:
        return b[0], jnp.where(a[0] == b[0], jnp.maximum(a[1], b[1]), b[1])

    for reverse in (False, True):  # up to here, then of the whole document
        pair = (documents_BL, ids_BL)
        ids_BL = jax.lax.associative_scan(larger, pair, reverse=reverse, axis=1)[1]
    return ids_BL + 1


def contiguous_positions(segment_ids_BL: jax.Array) -> jax.Array:
    """int32[B, L]: 0, 1, 2, … among the non-padding tokens of each document.

    Segment ids must not decrease along a row, padding aside. Padding gets 0, which every encoding
    can embed: a position beyond a table would give NaN, and a masked NaN still spreads.
    """
    order_BL = order(segment_ids_BL)
    seen_BL = jax.lax.cummax(segment_ids_BL, axis=1)
    before_BL = jnp.pad(seen_BL[:, :-1], ((0, 0), (1, 0)))
    starts_BL = jnp.where(segment_ids_BL > before_BL, order_BL, 0)
    return jnp.where(segment_ids_BL != 0, order_BL - jax.lax.cummax(starts_BL, axis=1), 0)


def is_plain(segment_ids_BL: jax.Array) -> jax.Array:
    """bool[]: every row is one document, its padding, if any, on the right."""
    single = (segment_ids_BL <= 1).all()
    return single & (segment_ids_BL[:, :-1] >= segment_ids_BL[:, 1:]).all()


def has_gaps(segment_ids_BL: jax.Array) -> jax.Array:
    """bool[]: somewhere padding stands within a document, so that places are not distances."""
    seen_BL = jax.lax.cummax(segment_ids_BL, axis=1)
    before_BL = jnp.pad(seen_BL[:, :-1], ((0, 0), (1, 0)))
    last_BL = jnp.pad(segment_ids_BL[:, :-1], ((0, 0), (1, 0)))
    return ((segment_ids_BL != 0) & (last_BL == 0) & (before_BL == segment_ids_BL)).any()


def sees_any(visibility: Visibility) -> jax.Array:
    """bool[B, L]: whether a query may attend to some key at all.

    A real token of a sequence that attends to itself always does.
    """
    v = visibility
    if v.aligned:
        return v.q_segment_ids_BL != 0
    return attention_mask(visibility).any(-1)
