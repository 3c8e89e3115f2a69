"""The key/value cache: a struct of arrays that the model takes and returns.

Only this module writes to it. Appending compacts: a row's non-padding tokens go to its next free
slots and padding is dropped, so slot number equals order within the row whatever the padding was.
Whoever allocates a cache checks in Python that prompt and new tokens fit: writes beyond the
capacity cannot raise under jit.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn import masks
from jaxformer.nn.recurrent import init_state
from jaxformer.sharding import constrain

BLOCK = 16  # slots that beams trade at a time


@functools.partial(jax.tree_util.register_dataclass, data_fields=["k", "v"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer [B, C, G, K], or of all layers stacked [N, B, C, G, K]."""

    k: jax.Array
    v: jax.Array

    def write(
        self, slots_BL: jax.Array, k_BLGK: jax.Array, v_BLGK: jax.Array, layer: Any = None
    ) -> "LayerCache":
        """Writes at each row's slots; a slot outside the cache (padding) is dropped."""
        rows_B1 = jnp.arange(slots_BL.shape[0])[:, None]
        at = (rows_B1, slots_BL) if layer is None else (layer, rows_B1, slots_BL)
        k = self.k.at[at].set(k_BLGK.astype(self.k.dtype), mode="drop")
        return LayerCache(k, self.v.at[at].set(v_BLGK.astype(self.v.dtype), mode="drop"))

    def read(self, layer: Any = None) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, C, G, K] of one layer."""
        return (self.k, self.v) if layer is None else (self.k[layer], self.v[layer])


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "layers",
        "positions_BC",
        "segment_ids_BC",
        "length_B",
        "extent_B",
        "source_layers",
        "source_segment_ids_BS",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of all layers, and what each slot stands for.

    `layers` is a tuple with one LayerCache a layer, or a stacked one when layers are scanned.
    `segment_ids_BC` is 0 in free slots, where `positions_BC` has what the call plans for the token
    to come (see `nn/positions/sources.py`); `length_B` counts the taken ones, and
    `extent_B` is the largest position that the call may reach plus 1. In an encoder-decoder
    `source_layers` holds the cross-attention's keys and values of the source, written once.
    """

    layers: tuple[LayerCache, ...] | LayerCache
    positions_BC: jax.Array
    segment_ids_BC: jax.Array
    length_B: jax.Array
    extent_B: jax.Array
    source_layers: tuple[LayerCache, ...] | LayerCache | None = None
    source_segment_ids_BS: jax.Array | None = None

    @property
    def capacity(self) -> int:
        return self.positions_BC.shape[1]

    def with_layers(self, layers: tuple[LayerCache, ...] | LayerCache) -> "Cache":
        return dataclasses.replace(self, layers=layers)

    def take_rows(self, rows_R: jax.Array) -> "Cache":
        """A cache of R rows that are copies of these, which must exist."""
        axis = self._row_axis
        return dataclasses.replace(
            self._take_places(rows_R),
            layers=_take(self.layers, rows_R, axis),
            source_layers=_take(self.source_layers, rows_R, axis),
            source_segment_ids_BS=_take(self.source_segment_ids_BS, rows_R, 0),
        )

    def trade_rows(self, rows_B: jax.Array) -> "Cache":
        """The same for beams of one example, which trade places with each other.

        They share keys and values of the source, which stay where they are. Of their own only
        slots that are taken move, BLOCK at a time and in place.
        """
        block = math.gcd(self.capacity, BLOCK)
        blocks, axis = -(-self.length_B.max() // block), self._row_axis

        def move(number: jax.Array, layers: Any) -> Any:
            def one(x: jax.Array) -> jax.Array:
                part = jax.lax.dynamic_slice_in_dim(x, number * block, block, axis + 1)
                part = _take(part, rows_B, axis)
                return jax.lax.dynamic_update_slice_in_dim(x, part, number * block, axis + 1)

            return jax.tree.map(one, layers)

        layers = jax.lax.fori_loop(0, blocks, move, self.layers)
        return dataclasses.replace(self._take_places(rows_B), layers=layers)

    @property
    def _row_axis(self) -> int:
        """Of keys and values."""
        return 1 if isinstance(self.layers, LayerCache) else 0

    def _take_places(self, rows_R: jax.Array) -> "Cache":
        names = ("positions_BC", "segment_ids_BC", "length_B", "extent_B")
        return dataclasses.replace(
            self, **{name: _take(getattr(self, name), rows_R, 0) for name in names}
        )

    def next_positions(self, segment_ids_BL: jax.Array) -> jax.Array:
        """int32[B, L]: positions that continue each row's single document."""
        return self.length_B[:, None] + masks.order(segment_ids_BL)

    def planned(self) -> tuple[jax.Array, jax.Array]:
        """int32[B] twice: the position of each row's newest token, and what the next one has."""
        slots_B2 = self.length_B[:, None] + jnp.array([[-1, 0]])
        pair_B2 = jnp.take_along_axis(self.positions_BC, slots_B2, axis=1, mode="clip")
        return pair_B2[:, 0], pair_B2[:, 1]

    def scatter(self, slots_BL: jax.Array, values_BL: jax.Array) -> jax.Array:
        """[B, C]: values of new tokens at their slots, zeros elsewhere."""
        empty_BC = jnp.zeros(self.positions_BC.shape, values_BL.dtype)
        rows_B1 = jnp.arange(slots_BL.shape[0])[:, None]
        return empty_BC.at[rows_B1, slots_BL].set(values_BL, mode="drop")

    def reserve(
        self, positions_BL: jax.Array, segment_ids_BL: jax.Array
    ) -> tuple["Cache", jax.Array]:
        """Takes slots for new tokens; returns the cache and int32[B, L] slots (padding: none)."""
        real_BL = segment_ids_BL != 0
        slots_BL = jnp.where(real_BL, self.next_positions(segment_ids_BL), self.capacity)
        rows_B1 = jnp.arange(slots_BL.shape[0])[:, None]
        positions_BC = self.positions_BC.at[rows_B1, slots_BL].set(positions_BL, mode="drop")
        segments_BC = self.segment_ids_BC.at[rows_B1, slots_BL].set(segment_ids_BL, mode="drop")
        length_B = self.length_B + real_BL.sum(1, dtype=jnp.int32)
        cache = dataclasses.replace(
            self, positions_BC=positions_BC, segment_ids_BC=segments_BC, length_B=length_B
        )
        return cache, slots_BL


def _take(tree: Any, rows_R: jax.Array, axis: int) -> Any:
    return jax.tree.map(lambda x: jnp.take(x, rows_R, axis=axis, mode="clip"), tree)


def init_cache(
    cfg: ModelConfig,
    batch_size: int,
    capacity: int,
    dtype: Any = jnp.float32,
    extent_B: jax.Array | None = None,
    positions_BC: jax.Array | None = None,
) -> Any:
    """An empty cache for `capacity` tokens a row, whose positions stay below `extent_B`.

    None stands for the capacity. `positions_BC` are those planned for the tokens to come. Of an
    LSTM it is the state before the first token, whatever the capacity.
    """
    if cfg.architecture == "lstm":
        return init_state(cfg, batch_size)
    shape = (batch_size, capacity, cfg.kv_heads, cfg.head_width)

    def layer(*leading: int) -> LayerCache:
        axes = ("layers",) * len(leading) + ("batch", "length", "kv_heads", None)
        empty = jnp.zeros((*leading, *shape), dtype)
        return LayerCache(constrain(empty, *axes), constrain(empty, *axes))

    empty_BC = jnp.zeros((batch_size, capacity), jnp.int32)
    if cfg.scan_layers:
        layers = layer(cfg.num_layers)
    else:
        layers = tuple(layer() for _ in range(cfg.num_layers))
    if extent_B is None:
        extent_B = jnp.full(batch_size, capacity, jnp.int32)
    planned_BC = empty_BC if positions_BC is None else positions_BC
    return Cache(layers, planned_BC, empty_BC, jnp.zeros(batch_size, jnp.int32), extent_B)
