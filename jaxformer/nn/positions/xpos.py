"""Rotary positions whose products decay with the distance; Sun et al. 2022, xPos."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import ModelConfig, XposConfig
from jaxformer.nn.positions.rope import Rope

OCTAVES = 100  # factors stay within 2^±100, so that products with them stay numbers


class Xpos(Rope):
    """RoPE, queries times ζ_m^((i - c) / scale_base), keys times ζ_m^(-(j - c) / scale_base).

    ζ_m = (2m/R + γ) / (1 + γ) for pair m (the paper's §3.2), so that products decay with i - j,
    those of fast pairs most. c is half of the document's extent, as in the authors' code: it falls
    out of the products and keeps both factors near 1. Where even so they would leave the range of
    float32, at `bound` ids, they are NaN. The fields of `position.rope` hold here too.

    For later keys products would grow without end, so an encoder turns as RoPE does, without
    factors; within the prefix of a prefix language model they do grow.
    """

    def __init__(self, cfg: ModelConfig, causal: bool):
        super().__init__(cfg, causal)
        self.decay, self.decays = cfg.position.xpos, causal
        self.end = self.bound(cfg)

    @classmethod
    def bound(cls, cfg: ModelConfig) -> int:
        if cfg.architecture == "encoder":
            return 0
        octaves = math.log2(1 / zetas(2, cfg.position.xpos)[0])  # of the pair that decays fastest
        end = int(2 * OCTAVES / octaves * cfg.position.xpos.scale_base) * cfg.position.source.unit
        return min(end, np.iinfo(np.int32).max)

    def factors(self, positions_BL: jax.Array, extents_BL: jax.Array) -> tuple[Any, Any]:
        grown, _ = super().factors(positions_BL, extents_BL)
        if not self.decays:
            return grown, grown
        from_centre_BL = positions_BL.astype(jnp.float32) - extents_BL.astype(jnp.float32) / 2
        powers_BL = from_centre_BL / (self.decay.scale_base * self.unit)
        powers_BL = jnp.where(extents_BL > self.end, jnp.nan, powers_BL)
        octaves_M = np.log2(zetas(self.width, self.decay)).astype(np.float32)
        octaves_BL1M = powers_BL[..., None, None] * octaves_M[None, None, None]
        return grown * jnp.exp2(octaves_BL1M), grown * jnp.exp2(-octaves_BL1M)


def zetas(width: int, section: XposConfig) -> np.ndarray:
    """ζ_m of the width / 2 pairs, float64."""
    return (np.arange(0, width, 2) / width + section.gamma) / (1 + section.gamma)
