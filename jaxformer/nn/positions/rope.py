"""Rotary position embedding; Su et al. 2021 §3.2."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn.positions.base import PositionEncoding
from jaxformer.nn.positions.sinusoidal import frequencies


class Rope(PositionEncoding):
    """Rotates pair m of each head by t w_m, w_m = base^(-2m/R), R = fraction · head dim.

    Pairs are (m, m + R/2) in layout 'half' (GPT-NeoX, Llama) and (2m, 2m + 1) in 'interleaved'
    (GPT-J, the paper). Dimensions beyond the first R stay as they are. Angles and the rotation are
    float32 whatever the activations' type.
    """

    def __init__(self, cfg: ModelConfig, causal: bool):
        section = cfg.position.rope
        self.width = round(section.fraction * cfg.head_width)
        self.base, self.layout = section.base, section.layout

    def rotate(
        self,
        q_BLHK: jax.Array,
        k_BLGK: jax.Array,
        positions_BL: jax.Array,
        extents_BL: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        frequencies_M = frequencies(self.width, self.base)
        angles_BLM = positions_BL[..., None].astype(jnp.float32) * frequencies_M[None, None]
        sin_BL1M, cos_BL1M = jnp.sin(angles_BLM)[:, :, None], jnp.cos(angles_BLM)[:, :, None]
        return self._turn(q_BLHK, sin_BL1M, cos_BL1M), self._turn(k_BLGK, sin_BL1M, cos_BL1M)

    def _turn(self, x_BLHK: jax.Array, sin_BL1M: jax.Array, cos_BL1M: jax.Array) -> jax.Array:
        turned, rest = x_BLHK[..., : self.width].astype(jnp.float32), x_BLHK[..., self.width :]
        if self.layout == "half":
            a, b = jnp.split(turned, 2, -1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
        pair = [a * cos_BL1M - b * sin_BL1M, b * cos_BL1M + a * sin_BL1M]
        if self.layout == "half":
            turned = jnp.concatenate(pair, -1)
        else:
            turned = jnp.stack(pair, -1).reshape(turned.shape)
        return jnp.concatenate([turned.astype(x_BLHK.dtype), rest], -1)
