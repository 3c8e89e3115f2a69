"""Vectors of clipped distances, added to keys and values; Shaw et al. 2018."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.positions.base import PositionEncoding, distances


class Shaw(PositionEncoding):
    """Keys k_j + a[i - j] (eq. 4) and, with `on_values`, values v_j + b[i - j] (eq. 3) for query i.

    a and b are tables of vectors of a head's width, one for each distance up to `max_distance` on
    each side, where distances are cut off. A causal model has none for later keys, which the prefix
    of a prefix language model sees at distance 0. Heads share them as in the paper, and so do
    layers, which have their own there. They start from Glorot's uniform numbers, as the authors'
    code does, and are not decayed.
    """

    trained = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        section = cfg.position.shaw
        self.most = section.max_distance
        self.least = 0 if causal else -self.most
        self.scale = cfg.head_width**-0.5 if cfg.scale_attention else 1.0
        shape = (self.most - self.least + 1, cfg.head_width)
        start = parameters.uniform(-((6 / sum(shape)) ** 0.5), (6 / sum(shape)) ** 0.5)
        self.keys = parameters.declare(shape, start)
        self.values = parameters.declare(shape, start) if section.on_values else None

    def score(
        self,
        q_BLHK: jax.Array,
        logits_BHLS: jax.Array,
        mask_BHLS: jax.Array,
        q_positions_BL: jax.Array,
        k_positions_BS: jax.Array,
    ) -> jax.Array:
        keys_NK = self.keys[...].astype(q_BLHK.dtype)
        products_BHLN = jnp.einsum(
            "BLHK,NK->BHLN", q_BLHK, keys_NK, preferred_element_type=jnp.float32
        )
        rows_B1LS = self._rows(q_positions_BL, k_positions_BS)[:, None]
        return self.scale * jnp.take_along_axis(products_BHLN, rows_B1LS, axis=-1)

    def mix(
        self, weights_BHLS: jax.Array, q_positions_BL: jax.Array, k_positions_BS: jax.Array
    ) -> jax.Array | None:
        if self.values is None:
            return None
        rows_B1LS = self._rows(q_positions_BL, k_positions_BS)[:, None]

        def at(row: jax.Array) -> jax.Array:
            """The weight of all keys at one distance."""
            return jnp.where(rows_B1LS == row, weights_BHLS, 0).sum(-1)

        weights_NBHL = jax.lax.map(at, jnp.arange(self.most - self.least + 1))
        return jnp.einsum(
            "NBHL,NK->BLHK", weights_NBHL, self.values[...], preferred_element_type=jnp.float32
        )

    def _rows(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        """Which row of the tables a query and a key have: int32[B, L, S]."""
        away_BLS = distances(q_positions_BL, k_positions_BS)
        return jnp.clip(away_BLS, self.least, self.most) - self.least
