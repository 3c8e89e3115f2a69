"""Rotary position embedding; Su et al. 2021 §3.2."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn.positions.angles import angles
from jaxformer.nn.positions.base import PositionEncoding
from jaxformer.nn.positions.scaling import dynamic_stretch, static_frequencies, temperature


class Rope(PositionEncoding):
    """Rotates pair m of each head by t w_m, w_m = base^(-2m/R), R = fraction · head dim.

    Pairs are (m, m + R/2) in layout 'half' (GPT-NeoX, Llama) and (2m, 2m + 1) in 'interleaved'
    (GPT-J, the paper). Dimensions beyond the first R stay as they are. Angles and the rotation are
    float32 whatever the activations' type. `keep` and `scaling` change the w_m: see `scaling.py`.

    Dynamic NTK depends on a document's extent, so it is no longer invariant to shifts. Within a
    call with a cache the extent is the largest that the call may reach, so keys are never turned
    again, and a full forward pass over as many tokens gives the same.
    """

    continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.section = section = cfg.position.rope
        self.unit = cfg.position.source.unit
        self.width = round(section.fraction * cfg.head_width)
        self.length = section.scaling.original_length or cfg.max_length
        self.shift_invariant = section.scaling.kind != "dynamic_ntk"

    def rotate(
        self,
        q_BLHK: jax.Array,
        k_BLGK: jax.Array,
        positions_BL: jax.Array,
        extents_BL: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        angles_BLM = self.angles(positions_BL, extents_BL)[:, :, None]
        sin_BL1M, cos_BL1M = jnp.sin(angles_BLM), jnp.cos(angles_BLM)
        grow_q, grow_k = self.factors(positions_BL, extents_BL)
        return (
            self._turn(q_BLHK, grow_q * sin_BL1M, grow_q * cos_BL1M),
            self._turn(k_BLGK, grow_k * sin_BL1M, grow_k * cos_BL1M),
        )

    def factors(self, positions_BL: jax.Array, extents_BL: jax.Array) -> tuple[Any, Any]:
        """What pairs of queries and of keys are multiplied by: numbers or float32[B, L, 1, M]."""
        grown = temperature(self.section)
        return grown, grown

    def angles(self, positions_BL: jax.Array, extents_BL: jax.Array) -> jax.Array:
        """float32[B, L, R/2], modulo full turns except in documents that dynamic NTK stretches."""
        shape = self.section, self.width, self.length
        w_M, stretch_BLM = static_frequencies(*shape), dynamic_stretch(*shape, extents_BL)
        angles_BLM = angles(positions_BL, w_M / self.unit)
        if stretch_BLM is None:
            return angles_BLM
        # Frequencies that differ by document are float32: off by 1e-2 at position 65,535.
        plain_BLM = (
            positions_BL[..., None].astype(jnp.float32) * w_M.astype(jnp.float32)[None, None]
        )
        stretched_BL1 = extents_BL[..., None] > self.length
        return jnp.where(stretched_BL1, plain_BLM * stretch_BLM, angles_BLM)

    def _turn(self, x_BLHK: jax.Array, sin_BL1M: jax.Array, cos_BL1M: jax.Array) -> jax.Array:
        turned, rest = x_BLHK[..., : self.width].astype(jnp.float32), x_BLHK[..., self.width :]
        if self.section.layout == "half":
            a, b = jnp.split(turned, 2, -1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
        pair = [a * cos_BL1M - b * sin_BL1M, b * cos_BL1M + a * sin_BL1M]
        if self.section.layout == "half":
            turned = jnp.concatenate(pair, -1)
        else:
            turned = jnp.stack(pair, -1).reshape(turned.shape)
        return jnp.concatenate([turned.astype(x_BLHK.dtype), rest], -1)
