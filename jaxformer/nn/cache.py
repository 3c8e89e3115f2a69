"""The key/value cache: a struct of arrays that the model takes and returns.

Only this module writes to it. Appending compacts: a row's non-padding tokens go to its next free
slots and padding is dropped, so slot number equals order within the row whatever the padding was.
Whoever allocates a cache checks in Python that prompt and new tokens fit: writes beyond the
capacity cannot raise under jit.

A layer that looks back over a window keeps no more keys than that: its slots are a ring, in which
the token at order n takes slot n mod W (Jiang et al. 2023, Mistral 7B, §2). Heads come before
slots, as products of heads want them: with slots first XLA on CPU turns the whole cache round at
every token.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.config import LayerSpec, ModelConfig
from jaxformer.nn import masks
from jaxformer.nn.positions import encoding_class
from jaxformer.nn.positions.base import PositionEncoding
from jaxformer.nn.recurrent import init_state
from jaxformer.sharding import constrain

BLOCK = 16  # slots that beams trade at a time


@functools.partial(jax.tree_util.register_dataclass, data_fields=["k", "v"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer [B, G, C, K], or of all layers stacked [N, B, G, C, K]."""

    k: jax.Array
    v: jax.Array

    @staticmethod
    def of(k_BSGK: jax.Array, v_BSGK: jax.Array) -> "LayerCache":
        """One layer's, all of it written at once."""
        return LayerCache(k_BSGK.swapaxes(1, 2), v_BSGK.swapaxes(1, 2))

    @property
    def capacity(self) -> int:
        return self.k.shape[-2]

    def write(
        self, slots_BL: jax.Array, k_BLGK: jax.Array, v_BLGK: jax.Array, layer: Any = None
    ) -> "LayerCache":
        """Writes at each row's slots; a slot outside the cache (padding) is dropped."""
        if slots_BL.shape == (1, 1):
            return self._write_one(slots_BL[0, 0], k_BLGK, v_BLGK, layer)
        at = (jnp.arange(slots_BL.shape[0])[:, None], slice(None), slots_BL)
        at = at if layer is None else (layer, *at)
        k = self.k.at[at].set(k_BLGK.astype(self.k.dtype), mode="drop")
        v = self.v.at[at].set(v_BLGK.astype(self.v.dtype), mode="drop")
        # Without the barrier XLA on CPU writes one cache to keep and another to read.
        return LayerCache(*jax.lax.optimization_barrier((k, v)))

    def _write_one(self, slot: jax.Array, k_BLGK: jax.Array, v_BLGK: jax.Array, layer: Any) -> Any:
        """The same for one token of one row: as a condition, or XLA on CPU copies the caches."""

        def put(x: jax.Array, new_BLGK: jax.Array) -> jax.Array:
            new = new_BLGK.swapaxes(1, 2).astype(x.dtype)
            new, at = (new, ()) if layer is None else (new[None], (layer,))
            return jax.lax.dynamic_update_slice(x, new, (*at, 0, 0, slot, 0))

        def put_both(cache: LayerCache) -> LayerCache:
            return LayerCache(put(cache.k, k_BLGK), put(cache.v, v_BLGK))

        return jax.lax.cond(slot < self.capacity, put_both, lambda cache: cache, self)

    def read(self, layer: Any = None) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, C, G, K] of one layer."""
        k, v = (self.k, self.v) if layer is None else (self.k[layer], self.v[layer])
        return k.swapaxes(1, 2), v.swapaxes(1, 2)


class Places(NamedTuple):
    """Of the new tokens or of keys: order in the row, segment ids, positions, prefix or not."""

    order: jax.Array
    segment_ids: jax.Array
    positions: jax.Array
    prefix: jax.Array | None


def append(
    cache: LayerCache,
    k_BLGK: jax.Array,
    v_BLGK: jax.Array,
    new: Places,
    kept: Places,
    length_B: jax.Array,
    layer: Any = None,
) -> tuple[LayerCache, jax.Array, jax.Array, Places]:
    """Adds new tokens; returns the cache and the keys, values and places that they may look at.

    `new` [B, L] are the tokens' places, padding with an order outside the cache. `kept` [B, C] are
    those of all tokens so far, these included, by order; `length_B` is how many there are.
    """
    capacity = cache.capacity
    if capacity == kept.segment_ids.shape[1]:
        cache = cache.write(new.order, k_BLGK, v_BLGK, layer)
        return cache, *cache.read(layer), kept
    real_BL = new.segment_ids != 0
    lasts_BL = real_BL & (new.order >= length_B[:, None] - capacity)
    slots_BL = jnp.where(lasts_BL, new.order % capacity, capacity)
    written = cache.write(slots_BL, k_BLGK, v_BLGK, layer)
    if new.order.shape[1] == 1:
        return written, *written.read(layer), _ring(kept, length_B, capacity)
    # The first of several new tokens look at keys that the last of them push out of the ring.
    before = _ring(kept, length_B - real_BL.sum(1, dtype=jnp.int32), capacity)
    old, fresh = cache.read(layer), (k_BLGK, v_BLGK)
    k, v = (jnp.concatenate([a, b.astype(a.dtype)], 1) for a, b in zip(old, fresh, strict=True))
    seen = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), before, new)
    return written, k, v, seen


def _ring(kept: Places, length_B: jax.Array, capacity: int) -> Places:
    """Places [B, W] of what a ring's slots hold once a row has `length_B` tokens."""
    newest_B1 = length_B[:, None] - 1
    order_BW = newest_B1 - (newest_B1 - jnp.arange(capacity)[None]) % capacity

    def take(x_BC: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x_BC, jnp.maximum(order_BW, 0), 1)

    segment_ids_BW = jnp.where(order_BW < 0, 0, take(kept.segment_ids))
    prefix_BW = None if kept.prefix is None else take(kept.prefix)
    return Places(order_BW, segment_ids_BW, take(kept.positions), prefix_BW)


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
                part = jax.lax.dynamic_slice_in_dim(x, number * block, block, axis + 2)
                part = _take(part, rows_B, axis)
                return jax.lax.dynamic_update_slice_in_dim(x, part, number * block, axis + 2)

            return jax.tree.map(one, layers)

        def is_whole(layer: Any) -> bool:
            return layer.capacity == self.capacity

        stacked = isinstance(self.layers, LayerCache)
        layers = (self.layers,) if isinstance(self.layers, LayerCache) else self.layers
        whole = jax.lax.fori_loop(0, blocks, move, [x for x in layers if is_whole(x)])
        # A ring is short: it moves at once.
        layers = tuple(whole.pop(0) if is_whole(x) else _take(x, rows_B, axis) for x in layers)
        found = self._take_places(rows_B)
        return dataclasses.replace(found, layers=layers[0] if stacked else layers)

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

    Layers with a window keep that many keys at most. None stands for the capacity. `positions_BC`
    are those planned for the tokens to come. Of an LSTM it is the state before the first token,
    whatever the capacity.
    """
    if cfg.architecture == "lstm":
        return init_state(cfg, batch_size)

    def layer(spec: LayerSpec, *leading: int) -> LayerCache:
        # What counts keys one after another wants them in their order: it has no ring.
        in_order = encoding_class(spec.position).score is not PositionEncoding.score
        slots = capacity if in_order else min(spec.window or capacity, capacity)
        shape = (*leading, batch_size, cfg.kv_heads, slots, cfg.head_width)
        axes = ("layers",) * len(leading) + ("batch", "kv_heads", "length", None)
        empty = jnp.zeros(shape, dtype)
        return LayerCache(constrain(empty, *axes), constrain(empty, *axes))

    empty_BC = jnp.zeros((batch_size, capacity), jnp.int32)
    specs = cfg.layer_specs(cfg.num_layers)
    if cfg.scan_layers:
        layers = layer(specs[0], cfg.num_layers)
    else:
        layers = tuple(layer(spec) for spec in specs)
    if extent_B is None:
        extent_B = jnp.full(batch_size, capacity, jnp.int32)
    planned_BC = empty_BC if positions_BC is None else positions_BC
    return Cache(layers, planned_BC, empty_BC, jnp.zeros(batch_size, jnp.int32), extent_B)
