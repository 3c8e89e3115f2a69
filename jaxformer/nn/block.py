"""One layer: self-attention, cross-attention where there is a source, feed-forward."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import LayerSpec, ModelConfig
from jaxformer.nn.attention import CrossAttention, SelfAttention
from jaxformer.nn.cache import LayerCache
from jaxformer.nn.context import Context
from jaxformer.nn.dropout import dropout
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.moe import MixtureOfExperts
from jaxformer.nn.norm import NORMS


class Block(nnx.Module):
    """Each sublayer f stands on the residual stream with its norm N and, in sandwich, another, M:

    pre: x + f(N x) · post: N(x + f(x)) · sandwich: x + M(f(N x)) · none: x + f(x);
    Xiong et al. 2020 §3 (pre, post), Ding et al. 2021 §3.2 (sandwich). The ablation
    `residual = False` leaves `x +` out.
    """

    def __init__(self, cfg: ModelConfig, spec: LayerSpec, dtype: jnp.dtype, *, cross: bool = False):
        self.placement, self.residual = cfg.norm_placement, cfg.residual
        self.dropout_rate = cfg.dropout.residual

        def norm(wanted: bool) -> Any:
            return NORMS[cfg.norm](cfg.d_model, cfg) if wanted else None

        normed, sandwich = self.placement != "none", self.placement == "sandwich"
        self.attention = SelfAttention(cfg, spec, dtype)
        self.attention_norm, self.attention_post_norm = norm(normed), norm(sandwich)
        self.cross_attention = CrossAttention(cfg, dtype) if cross else None
        self.cross_attention_norm = norm(cross and normed)
        self.cross_attention_post_norm = norm(cross and sandwich)
        self.feed_forward = (MixtureOfExperts if spec.experts else FeedForward)(cfg, dtype)
        self.feed_forward_norm, self.feed_forward_post_norm = norm(normed), norm(sandwich)

    def __call__(
        self,
        x_BLD: jax.Array,
        context: Context,
        layer: jax.Array | int,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
        cache_index: jax.Array | None = None,
    ) -> tuple[jax.Array, LayerCache | None, dict[str, Any]]:
        """Returns the new residual stream, the cache, what is to be captured, and of a layer with
        experts its `routing`."""
        seen: dict[str, Any] = {}

        def attend(x_BLD: jax.Array) -> jax.Array:
            nonlocal cache
            out_BLD, cache, weights = self.attention(x_BLD, context, layer, cache, cache_index)
            seen["attention_weights"] = weights
            return dropout(out_BLD, self.dropout_rate, context.key, "attention_output", layer)

        def attend_to_source(x_BLD: jax.Array) -> jax.Array:
            assert self.cross_attention is not None
            out_BLD, weights = self.cross_attention(x_BLD, context, layer, cross_cache, cache_index)
            seen["cross_attention_weights"] = weights
            return dropout(out_BLD, self.dropout_rate, context.key, "cross_output", layer)

        def feed_forward(x_BLD: jax.Array) -> jax.Array:
            if isinstance(self.feed_forward, MixtureOfExperts):
                out_BLD, seen["routing"] = self.feed_forward(x_BLD, context, layer)
            else:
                out_BLD = self.feed_forward(x_BLD, context, layer)
            return dropout(out_BLD, self.dropout_rate, context.key, "feed_forward_output", layer)

        x_BLD = self._add(x_BLD, attend, self.attention_norm, self.attention_post_norm)
        if self.cross_attention is not None:
            norms = self.cross_attention_norm, self.cross_attention_post_norm
            x_BLD = self._add(x_BLD, attend_to_source, *norms)
        x_BLD = self._add(x_BLD, feed_forward, self.feed_forward_norm, self.feed_forward_post_norm)
        seen["hidden_states"] = x_BLD
        wanted = (context.capture | {"routing"}) & seen.keys()
        return x_BLD, cache, {name: seen[name] for name in sorted(wanted)}

    def _add(
        self, x_BLD: jax.Array, sublayer: Callable[[jax.Array], jax.Array], norm: Any, post: Any
    ) -> jax.Array:
        add = (lambda out_BLD: x_BLD + out_BLD) if self.residual else (lambda out_BLD: out_BLD)
        match self.placement:
            case "pre":
                return add(sublayer(norm(x_BLD)))
            case "post":
                return norm(add(sublayer(x_BLD)))
            case "sandwich":
                return add(post(sublayer(norm(x_BLD))))
            case _:
                return add(sublayer(x_BLD))
