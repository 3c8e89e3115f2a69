"""Heads that see a few tokens beside heads that see all; Jelassi et al. 2024, Hard-ALiBi."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn.positions.base import PositionEncoding, away


class HardAlibi(PositionEncoding):
    """Head h = 1 … m attends only to keys with |i - j| < h, the H - m others to all, without bias.

    Head 1 sees the query's own token alone, so no query is left without keys. m is half of the
    heads unless told. The paper is causal; an encoder's windows reach both ways.
    """

    continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.num_heads, self.unit = cfg.num_heads, cfg.position.source.unit
        self.windowed = cfg.position.hard_alibi.heads or cfg.num_heads // 2

    def allow(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        number_1H11 = jnp.arange(1, self.num_heads + 1)[None, :, None, None]
        near_BHLS = away(q_positions_BL, k_positions_BS, self.unit)[:, None] < number_1H11
        return near_BHLS | (number_1H11 > self.windowed)
