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

    `site` names the place in the network, `layer` (may be traced) the layer it stands in.
    """
    if key is None or rate == 0:
        return x
    site_key = jax.random.fold_in(jax.random.fold_in(key.key, zlib.crc32(site.encode())), layer)
    row_keys = jax.vmap(jax.random.fold_in, (None, 0))(site_key, key.rows_B)
    keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1 - rate, x.shape[1:]))(row_keys)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)
