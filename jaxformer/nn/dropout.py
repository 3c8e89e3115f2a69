"""Dropout whose draws depend on (key, site, global row) alone.

However a batch is split into microbatches, devices or hosts, a row draws the same masks, and a
resumed run draws what the uninterrupted one would have: no random state is carried.
"""

import dataclasses
import functools
import zlib

import jax
import jax.numpy as jnp


@functools.partial(jax.tree_util.register_dataclass, data_fields=["key", "rows_B"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class RowKey:
    """A step's key and the number of each row within the global batch, int32[B]."""

    key: jax.Array
    rows_B: jax.Array

    @classmethod
    def of(cls, key: "RowKey | jax.Array | None", batch_size: int) -> "RowKey | None":
        """Takes a plain key for one whose rows are 0 … batch_size - 1."""
        if key is None or isinstance(key, RowKey):
            return key
        return cls(key, jnp.arange(batch_size))

    def fold(self, name: str) -> "RowKey":
        """A key for a part of the network whose sites have the names of another part's."""
        part = jax.random.fold_in(self.key, zlib.crc32(name.encode()))
        return dataclasses.replace(self, key=part)


def dropout(
    x: jax.Array, rate: float, key: RowKey | None, site: str, layer: jax.Array | int = 0
) -> jax.Array:
    """Zeroes entries of x[B, ...] with probability `rate` and scales the rest by 1 / (1 - rate).

    `site` names the place in the network, `layer` (may be traced) the layer it stands in. The
    probability is a multiple of 2^-16, and what is kept is scaled by exactly its inverse.
    """
    if key is None or rate == 0:
        return x
    draws = jax.vmap(lambda k: _uint16(k, x.shape[1:]))(_row_keys(key, site, layer))
    kept = max(1, round((1 - rate) * 2**16))  # of all draws
    return jnp.where(draws < kept, x * (2**16 / kept), 0).astype(x.dtype)


def jitter(
    x: jax.Array, amount: float, key: RowKey | None, site: str, layer: jax.Array | int = 0
) -> jax.Array:
    """Multiplies entries of x[B, ...] by draws of U(1 - amount, 1 + amount), keyed like dropout."""
    if key is None or amount == 0:
        return x
    draw = functools.partial(jax.random.uniform, minval=1 - amount, maxval=1 + amount)
    factors = jax.vmap(lambda k: draw(k, x.shape[1:]))(_row_keys(key, site, layer))
    return (x * factors).astype(x.dtype)


def _row_keys(key: RowKey, site: str, layer: jax.Array | int) -> jax.Array:
    site_key = jax.random.fold_in(jax.random.fold_in(key.key, zlib.crc32(site.encode())), layer)
    return jax.vmap(jax.random.fold_in, (None, 0))(site_key, key.rows_B)


def _uint16(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform draws as uint32; two of them are one number of the generator, which costs most."""
    *outer, width = shape
    pairs = jax.random.bits(key, (*outer, -(-width // 2)), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(pairs, jnp.uint16).reshape(*outer, -1)
    return halves[..., :width].astype(jnp.uint32)
