"""The position-wise feed-forward layer and its gated forms."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import GATED, ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.context import Context
from jaxformer.nn.dropout import dropout
from jaxformer.nn.linear import Linear
from jaxformer.sharding import constrain

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


class FeedForward(nnx.Module):
    """down(f(up x)); Vaswani et al. 2017 §3.3. Gated: down(f(gate x) · up x); Shazeer 2020."""

    def __init__(
        self, cfg: ModelConfig, dtype: jnp.dtype, width: int = 0, site: str = "feed_forward"
    ):
        """`width` of the hidden layer, 0: model.d_ff's; `site` names its dropout."""
        init, width = parameters.scheme(cfg), width or cfg.ff_width

        def linear(n_in: int, n_out: int, initializer: parameters.Initializer) -> Linear:
            bias = cfg.feed_forward_bias
            return Linear(n_in, n_out, bias=bias, initializer=initializer, dtype=dtype)

        gated = cfg.activation in GATED
        self.up = linear(cfg.d_model, width, init.kernel)
        self.gate = linear(cfg.d_model, width, init.kernel) if gated else None
        self.down = linear(width, cfg.d_model, init.residual)
        self.activation = GATED.get(cfg.activation, cfg.activation)
        self.dropout_rate, self.site = cfg.dropout.feed_forward, site

    def __call__(self, x_BLD: jax.Array, context: Context, layer: jax.Array | int) -> jax.Array:
        activate = ACTIVATIONS[self.activation]
        h_BLF = self.up(x_BLD)
        h_BLF = activate(h_BLF) if self.gate is None else activate(self.gate(x_BLD)) * h_BLF
        h_BLF = constrain(h_BLF, "batch", "length", "ff")
        h_BLF = dropout(h_BLF, self.dropout_rate, context.key, self.site, layer)
        return self.down(h_BLF)
