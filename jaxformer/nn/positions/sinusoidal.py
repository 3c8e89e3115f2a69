"""Fixed sines and cosines added to the embeddings; Vaswani et al. 2017 §3.5."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn.positions.angles import angles, frequencies
from jaxformer.nn.positions.base import PositionEncoding


class Sinusoidal(PositionEncoding):
    """p[2m] = sin(t w_m), p[2m+1] = cos(t w_m), w_m = base^(-2m/D); times `scale`.

    layout 'concatenated' orders them sin…, cos… instead. Angles are float32.
    """

    at_input = continuous = True
    shift_invariant = False

    def __init__(self, cfg: ModelConfig, causal: bool):
        section = cfg.position.sinusoidal
        self.width, self.base = cfg.d_model, section.base
        self.unit = cfg.position.source.unit
        self.layout, self.scale = section.layout, section.scale

    def embed(self, x_BLD: jax.Array, positions_BL: jax.Array) -> jax.Array:
        return x_BLD + self.scale * self.table(positions_BL)

    def table(self, positions_BL: jax.Array) -> jax.Array:
        """float32[B, L, D], unscaled."""
        angles_BLM = angles(positions_BL, frequencies(self.width, self.base) / self.unit)
        pairs = [jnp.sin(angles_BLM), jnp.cos(angles_BLM)]
        if self.layout == "concatenated":
            return jnp.concatenate(pairs, -1)
        return jnp.stack(pairs, -1).reshape(*positions_BL.shape, self.width)
