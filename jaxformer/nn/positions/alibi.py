"""Attention with linear biases; Press et al. 2022."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.positions.base import PositionEncoding, away


class Alibi(PositionEncoding):
    """-s_h |i - j|, added after the logits are scaled; the same form in both directions.

    The paper is causal; for encoders its authors propose this symmetric form beside their code,
    where heads beyond a power of two take every other slope of the next one, as here.
    """

    continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.num_heads, self.unit = cfg.num_heads, cfg.position.source.unit

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        return linear_bias(jnp.asarray(self.slopes_H()), q_positions_BL, k_positions_BS, self.unit)

    def slopes_H(self) -> jax.Array | np.ndarray:
        return slopes(self.num_heads).astype(np.float32)


class LearnedAlibi(Alibi):
    """ALiBi whose slopes, one a head for all layers, are trained from ALiBi's own.

    Their logarithms are the parameters, as in Kazemnejad et al. 2023's code, so that slopes stay
    above 0; they are not decayed.
    """

    trained = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        super().__init__(cfg, causal)
        self.log_slopes = parameters.declare((cfg.num_heads,), _start)

    def slopes_H(self) -> jax.Array:
        return jnp.exp(self.log_slopes[...])


def slopes(num_heads: int) -> np.ndarray:
    """2^(-8h/H), h = 1 … H, for a power of two: float64[H].

    Other numbers have those of the power c below, then every other one of 2c.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    first = 2.0 ** (-8 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-4 * np.arange(1, 2 * below, 2) / below)
    return np.concatenate([first, between])[:num_heads]


def linear_bias(
    slopes_H: jax.Array, q_positions_BL: jax.Array, k_positions_BS: jax.Array, unit: int = 1
) -> jax.Array:
    """-s_h |i - j|, float32[B, H, L, S]."""
    away_BLS = away(q_positions_BL, k_positions_BS, unit)
    return -slopes_H[None, :, None, None] * away_BLS[:, None]


def _start(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.asarray(np.log(slopes(shape[0])), jnp.float32)
