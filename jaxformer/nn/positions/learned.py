"""A trained vector for each position; Gehring et al. 2017 §3.1, Radford et al. 2019."""

import jax

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.linear import lookup
from jaxformer.nn.positions.base import PositionEncoding


class Learned(PositionEncoding):
    """A table of max_length rows; a position beyond it gives NaN, never a clamped row."""

    at_input = True
    shift_invariant = False
    trained = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        shape = (cfg.max_length, cfg.d_model)
        self.table = parameters.declare(shape, parameters.scheme(cfg).embedding)

    @classmethod
    def bound(cls, cfg: ModelConfig) -> int:
        return cfg.max_length

    def embed(self, x_BLD: jax.Array, positions_BL: jax.Array) -> jax.Array:
        return x_BLD + lookup(self.table[...], positions_BL)
