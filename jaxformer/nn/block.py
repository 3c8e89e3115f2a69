"""One layer: attention and feed-forward, each on a residual connection with its norms."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.attention import SelfAttention
from jaxformer.nn.cache import LayerCache
from jaxformer.nn.context import Context
from jaxformer.nn.dropout import dropout
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.norm import NORMS


class Block(nnx.Module):
    """With f a sublayer, N its norm and M a second norm, the placements are

    pre: x + f(N x) · post: N(x + f(x)) · sandwich: x + M(f(N x)) · none: x + f(x);
    Xiong et al. 2020 §3 (pre, post), Ding et al. 2021 §3.2 (sandwich).
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        initializer, output_initializer = kernel_initializers(cfg)
        self.attention = SelfAttention(cfg, initializer, output_initializer, dtype)
        self.feed_forward = FeedForward(cfg, initializer, output_initializer, dtype)
        self.placement, self.dropout_rate = cfg.norm_placement, cfg.dropout.residual

        def norm(wanted: bool) -> nnx.Module | None:
            return NORMS[cfg.norm](cfg.d_model, cfg) if wanted else None

        self.attention_norm = norm(cfg.norm_placement != "none")
        self.feed_forward_norm = norm(cfg.norm_placement != "none")
        self.attention_post_norm = norm(cfg.norm_placement == "sandwich")
        self.feed_forward_post_norm = norm(cfg.norm_placement == "sandwich")

    def __call__(
        self,
        x_BLD: jax.Array,
        context: Context,
        layer: jax.Array | int,
        cache: LayerCache | None = None,
        cache_index: jax.Array | None = None,
    ) -> tuple[jax.Array, LayerCache | None, dict[str, jax.Array]]:
        """Returns the new residual stream, the cache, and what is to be captured."""
        weights_BHLS = None

        def attend(x_BLD: jax.Array) -> jax.Array:
            nonlocal cache, weights_BHLS
            out_BLD, cache, weights_BHLS = self.attention(x_BLD, context, layer, cache, cache_index)
            return dropout(out_BLD, self.dropout_rate, context.key, "attention_output", layer)

        def feed_forward(x_BLD: jax.Array) -> jax.Array:
            out_BLD = self.feed_forward(x_BLD, context, layer)
            return dropout(out_BLD, self.dropout_rate, context.key, "feed_forward_output", layer)

        x_BLD = self._add(x_BLD, attend, self.attention_norm, self.attention_post_norm)
        x_BLD = self._add(x_BLD, feed_forward, self.feed_forward_norm, self.feed_forward_post_norm)
        seen = {"attention_weights": weights_BHLS, "hidden_states": x_BLD}
        return x_BLD, cache, {name: seen[name] for name in sorted(context.capture)}

    def _add(
        self,
        x_BLD: jax.Array,
        sublayer: Callable[[jax.Array], jax.Array],
        norm: Any,
        post_norm: Any,
    ) -> jax.Array:
        match self.placement:
            case "pre":
                return x_BLD + sublayer(norm(x_BLD))
            case "post":
                return norm(x_BLD + sublayer(x_BLD))
            case "sandwich":
                return x_BLD + post_norm(sublayer(norm(x_BLD)))
            case _:
                return x_BLD + sublayer(x_BLD)


def kernel_initializers(
    cfg: ModelConfig,
) -> tuple[parameters.Initializer, parameters.Initializer]:
    """Initializers of kernels and of those that write to the residual stream.

    gpt2: N(0, .02²), residual outputs divided by sqrt(2 N), Radford et al. 2019 §2.3;
    xavier: Glorot uniform throughout.
    """
    if cfg.initializer == "xavier":
        return parameters.xavier_uniform, parameters.xavier_uniform
    return parameters.normal(0.02), parameters.normal(0.02 / (2 * cfg.num_layers) ** 0.5)
