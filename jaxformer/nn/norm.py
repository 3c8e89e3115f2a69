"""Layer normalisations, computed in float32 whatever the activations' type."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(var + eps) · scale (+ bias); Ba et al. 2016 eq. 4."""

    def __init__(self, width: int, cfg: ModelConfig):
        self.scale = parameters.declare((width,), parameters.ones)
        bias = cfg.layernorm.bias
        self.bias = parameters.declare((width,), parameters.zeros) if bias else None
        self.epsilon = cfg.norm_epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        centred = x32 - x32.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.epsilon) * _last_axis(self.scale, x)
        if self.bias is not None:
            y = y + _last_axis(self.bias, x)
        return y.astype(x.dtype)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x²) + eps) · scale; Zhang and Sennrich 2019 eq. 4."""

    def __init__(self, width: int, cfg: ModelConfig):
        self.scale = parameters.declare((width,), parameters.ones)
        self.epsilon = cfg.norm_epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.square(x32).mean(-1, keepdims=True)
        y = x32 * jax.lax.rsqrt(mean_square + self.epsilon) * _last_axis(self.scale, x)
        return y.astype(x.dtype)


def _last_axis(vector_D: nnx.Param, x: jax.Array) -> jax.Array:
    """The vector with x's rank, so that nothing is broadcast by accident."""
    return jnp.expand_dims(vector_D[...], range(x.ndim - 1))


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
