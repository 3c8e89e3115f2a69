"""What every layer of one forward pass shares."""

import dataclasses
from collections.abc import Mapping

import jax

from jaxformer.nn.dropout import RowKey
from jaxformer.nn.masks import Visibility
from jaxformer.nn.positions import PositionEncoding


@dataclasses.dataclass(frozen=True)
class Source:
    """What cross-attention looks at: encoder states [B, S, D] (None: cached) and its view."""

    hidden_BSD: jax.Array | None
    visibility: Visibility


@dataclasses.dataclass(frozen=True)
class Context:
    """Positions, visibility and keys; made once by the model, read by its layers."""

    encodings: Mapping[str, PositionEncoding]
    visibility: Visibility
    q_positions_BL: jax.Array
    k_positions_BS: jax.Array
    extents_BL: jax.Array  # of the queries' documents: largest position + 1
    slots_BL: jax.Array | None  # orders of the new keys in the cache, outside of it for padding;
    lengths_B: jax.Array | None  # … and how many it has then; None without a cache
    source: Source | None  # for cross-attention
    key: RowKey | None  # None: no dropout
    capture: frozenset[str]
