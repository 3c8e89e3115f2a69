"""A feed-forward layer with experts, of which each token has a few: docs/moe.md.

Shazeer et al. 2017, Fedus et al. 2022 (Switch), Jiang et al. 2024 (Mixtral).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters, routing
from jaxformer.nn.context import Context
from jaxformer.nn.dropout import dropout, jitter
from jaxformer.nn.experts import Experts
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.routing import Routing
from jaxformer.sharding import constrain


class Router(nnx.Module):
    """Logits over experts, in float32 whatever the compute type."""

    def __init__(self, cfg: ModelConfig):
        shape, init = (cfg.d_model, cfg.moe.num_experts), parameters.scheme(cfg)
        self.kernel = parameters.declare(shape, init.kernel)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """float32[B, L, E]"""
        return jnp.matmul(x_BLD.astype(jnp.float32), self.kernel[...], precision="highest")


class MixtureOfExperts(nnx.Module):
    """Σ w_e FFN_e(x) over the top-k experts e of each token x, and a shared one of all tokens.

    With a step's key (in training) experts have the capacity of the config, if any, and the router
    jitter. Without one no token is dropped, so that a token's output depends on nothing else.
    Padding goes to no expert and gives 0 (but for the shared one).
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        self.config, self.dropout_rate, self.dtype = cfg.moe, cfg.dropout.feed_forward, dtype
        self.router, self.experts = Router(cfg), Experts(cfg, dtype)
        width = cfg.moe.shared_d_ff
        self.shared = FeedForward(cfg, dtype, width, site="shared") if width else None

    def __call__(
        self, x_BLD: jax.Array, context: Context, layer: jax.Array | int
    ) -> tuple[jax.Array, Routing]:
        """The layer's output in the compute type, and sums that tell of its routing."""
        moe, key, length = self.config, context.key, x_BLD.shape[1]
        real_BL = context.visibility.q_segment_ids_BL != 0
        logits_BLE = self.router(
            jitter(x_BLD.astype(jnp.float32), moe.jitter, key, "router", layer)
        )
        probs_BLE = jax.nn.softmax(logits_BLE)
        chosen = routing.choose(probs_BLE, real_BL, moe.top_k, moe.normalize_top_k)
        experts_BLK = chosen[0]
        mask_BLF, dropped = None, jnp.float32(0)
        if self.dropout_rate and key is not None:
            ones_BLF = jnp.ones((*x_BLD.shape[:2], self.experts.width), self.dtype)
            mask_BLF = dropout(ones_BLF, self.dropout_rate, key, "feed_forward", layer)
        if moe.capacity_factor and key is not None:
            size = routing.capacity(moe, length)
            whole_BLK = constrain(experts_BLK, "batch", None, None)  # places are counted along it
            slots_BLK = routing.slots(whole_BLK, moe.num_experts, size)
            out_BLD = self.experts.by_capacity(x_BLD, mask_BLF, *chosen, slots_BLK, size)
            dropped = (real_BL[..., None] & (slots_BLK == size)).sum()
        else:
            out_BLD = self.experts.dropless(x_BLD, mask_BLF, *chosen)
        out_BLD = out_BLD.astype(self.dtype)
        if self.shared is not None:
            out_BLD = out_BLD + self.shared(x_BLD, context, layer)
        by_row = moe.balance_over == "row"
        return out_BLD, routing.describe(logits_BLE, experts_BLK, dropped, by_row)
