"""Kernelised biases that fall with the distance; Chi et al. 2022, KERPLE."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.positions.base import PositionEncoding, away

LEAST = 0.01


class KerpleLog(PositionEncoding):
    """-r1 ln(1 + r2 |i - j|), r1 and r2 > 0 trained, one of each a head for all layers.

    The published code is followed: r1 starts from U(0, 2), r2 from U(0, 1), and neither counts as
    less than .01. There the numbers themselves are cut off at each step; here the bias sees them
    cut off and the gradient passes, so a number below .01 can return. They are not decayed.
    """

    trained = continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.unit = cfg.position.source.unit
        self.r1 = parameters.declare((cfg.num_heads,), parameters.uniform(0.0, 2.0))
        self.r2 = parameters.declare((cfg.num_heads,), parameters.uniform(0.0, 1.0))

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        r1_H, r2_H = cut(self.r1[...], LEAST), cut(self.r2[...], LEAST)
        away_B1LS = away(q_positions_BL, k_positions_BS, self.unit)[:, None]
        return -_by_head(r1_H) * jnp.log1p(_by_head(r2_H) * away_B1LS)


class KerplePower(PositionEncoding):
    """-r1 |i - j|^r2, r1 > 0 and 0 < r2 ≤ 2 trained, one of each a head for all layers.

    The published code is followed: r1 starts from U(0, 1), r2 from U(0, 2), r1 counts as .01 at
    least, r2 as .01 to 2, as above. r2 = 1 is ALiBi with trained slopes.
    """

    trained = continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.unit = cfg.position.source.unit
        self.r1 = parameters.declare((cfg.num_heads,), parameters.uniform(0.0, 1.0))
        self.r2 = parameters.declare((cfg.num_heads,), parameters.uniform(0.0, 2.0))

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        r1_H, r2_H = cut(self.r1[...], LEAST), cut(self.r2[...], LEAST, 2.0)
        away_B1LS = away(q_positions_BL, k_positions_BS, self.unit)[:, None]
        log_B1LS = jnp.log(
            jnp.where(away_B1LS > 0, away_B1LS, 1.0)
        )  # the gradient of 0^r2 would be NaN
        return -_by_head(r1_H) * jnp.where(away_B1LS > 0, jnp.exp(_by_head(r2_H) * log_B1LS), 0.0)


def cut(x: jax.Array, least: float, most: float = jnp.inf) -> jax.Array:
    """x within bounds; its gradient is 1 beyond them too."""
    return x + jax.lax.stop_gradient(jnp.clip(x, least, most) - x)


def _by_head(x_H: jax.Array) -> jax.Array:
    return x_H[None, :, None, None]
