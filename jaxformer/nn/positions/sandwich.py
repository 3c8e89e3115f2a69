"""Biases that are products of sinusoidal vectors; Chi et al. 2023, Sandwich."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.nn.positions.angles import angles, frequencies
from jaxformer.nn.positions.base import PositionEncoding

BASE = 10000.0


class Sandwich(PositionEncoding):
    """(Σ_m cos((i - j) w_m) - d/2) / (8h / H), w_m = 10000^(-2m/d), m < d/2, d = `width`.

    The paper's §5: what sinusoidal positions would add to the logits, words apart, without its
    largest value; a temporal bias that falls quickly, then like a logarithm. Head h is 8h / H times
    flatter than the sum. Nothing is trained. Symmetric, so encoders have the same form.
    """

    continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.num_heads, self.width = cfg.num_heads, cfg.position.sandwich.width
        self.unit = cfg.position.source.unit

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        q_BLN, k_BSN = self._vectors(q_positions_BL), self._vectors(k_positions_BS)
        # Products in fewer bits, which some platforms take for matrices, would blur far keys.
        sums_BLS = jnp.einsum("BLN,BSN->BLS", q_BLN, k_BSN, precision=jax.lax.Precision.HIGHEST)
        flatness_H = 8 * np.arange(1, self.num_heads + 1, dtype=np.float32) / self.num_heads
        return (sums_BLS - self.width / 2)[:, None] / flatness_H[None, :, None, None]

    def _vectors(self, positions_BL: jax.Array) -> jax.Array:
        """Sines and cosines, float32[B, L, N = d]: their products are the sums of cosines."""
        angles_BLM = angles(positions_BL, frequencies(self.width, BASE) / self.unit)
        return jnp.concatenate([jnp.sin(angles_BLM), jnp.cos(angles_BLM)], -1)
