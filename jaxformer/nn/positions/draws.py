"""What position sources draw, keyed by row and document, and what they count."""

import jax
import jax.numpy as jnp

from jaxformer.nn.dropout import RowKey


def sorted_samples(
    key: RowKey, segment_ids_BL: jax.Array, positions_BL: jax.Array, size: int
) -> jax.Array:
    """int32[B, L]: id i of a document becomes the i-th smallest of a sample of 0 … size - 1.

    The sample, without replacement and uniform, has as many ids as the document, at most `size`.
    One pass a document, over all rows at once.
    """
    row_keys = row_keys_of(key)
    last = segment_ids_BL.max(initial=0)

    def draw(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        document, ids_BL = carry
        here_BL = segment_ids_BL == document
        count_B = jnp.where(here_BL, positions_BL + 1, 0).max(1)
        keys = jax.vmap(jax.random.fold_in, (0, None))(row_keys, document)
        scores_BM = jax.vmap(lambda k: jax.random.bits(k, (size,)))(keys)
        # The ids of the lowest scores: a set of equal chance with every other of its size.
        highest_B1 = jnp.take_along_axis(
            jnp.sort(scores_BM, axis=1), jnp.maximum(count_B - 1, 0)[:, None], axis=1
        )
        seen_BM = jnp.cumsum(scores_BM <= highest_B1, axis=1)
        found_BL = jax.vmap(jnp.searchsorted)(seen_BM, positions_BL + 1)
        return document + 1, jnp.where(here_BL, found_BL, ids_BL)

    start = jnp.ones_like(last), jnp.zeros_like(positions_BL)
    return jax.lax.while_loop(lambda carry: carry[0] <= last, draw, start)[1]


def sorted_reals(
    key: RowKey, segment_ids_BL: jax.Array, positions_BL: jax.Array, size: int
) -> jax.Array:
    """int32[B, L]: id i < L of a document becomes the i-th smallest of draws from 0 … size - 1.

    Draws, one for each id of the document, leave room for the number of their place, which is added
    after sorting, so that all differ: where steps are fine these are sorted uniform reals.
    """
    row_keys, places_L = row_keys_of(key), jnp.arange(positions_BL.shape[1])
    last = segment_ids_BL.max(initial=0)

    def one(key: jax.Array, count: jax.Array) -> jax.Array:
        keys_L, room = jax.vmap(jax.random.fold_in, (None, 0))(key, places_L), size - count + 1
        draws_L = jax.vmap(lambda k: jax.random.randint(k, (), 0, jnp.maximum(room, 1)))(keys_L)
        return jnp.sort(jnp.where(places_L < count, draws_L, size)) + places_L

    def draw(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        document, ids_BL = carry
        here_BL = segment_ids_BL == document
        count_B = jnp.where(here_BL, positions_BL + 1, 0).max(1)
        keys = jax.vmap(jax.random.fold_in, (0, None))(row_keys, document)
        found_BL = jnp.take_along_axis(jax.vmap(one)(keys, count_B), positions_BL, axis=1)
        return document + 1, jnp.where(here_BL, found_BL, ids_BL)

    start = jnp.ones_like(last), jnp.zeros_like(positions_BL)
    return jax.lax.while_loop(lambda carry: carry[0] <= last, draw, start)[1]


def places_in_runs(is_digit_BL: jax.Array, segment_ids_BL: jax.Array) -> jax.Array:
    """int32[B, L]: 1, 2, 3, … along each run of digits of one document, 0 elsewhere."""
    at_BL = jnp.broadcast_to(jnp.arange(is_digit_BL.shape[1])[None], is_digit_BL.shape)
    is_first_BL = jnp.diff(segment_ids_BL, axis=1, prepend=-1) != 0
    starts_BL = jnp.where(is_digit_BL, jnp.where(is_first_BL, at_BL - 1, -1), at_BL)
    places_BL = at_BL - jax.lax.cummax(starts_BL, axis=1)
    return jnp.where(is_digit_BL, places_BL, 0)


def uniform(key: RowKey, segment_ids_BL: jax.Array, counts_BL: jax.Array) -> jax.Array:
    """int32[B, L], uniform on 0 … count - 1, one draw a document (whose counts are equal)."""
    row_keys = row_keys_of(key)

    def draw(row_key: jax.Array, document: jax.Array, count: jax.Array) -> jax.Array:
        return jax.random.randint(jax.random.fold_in(row_key, document), (), 0, count)

    by_token = jax.vmap(draw, (None, 0, 0))
    return jax.vmap(by_token)(row_keys, segment_ids_BL, counts_BL)


def row_keys_of(key: RowKey) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key.key, key.rows_B)
