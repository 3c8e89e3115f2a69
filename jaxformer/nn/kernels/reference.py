"""Attention as the formula says, with the whole weight matrix in memory."""

import jax
import jax.numpy as jnp

from jaxformer.nn import masks
from jaxformer.nn.context import Context
from jaxformer.nn.dropout import dropout


def attend(
    q_BLHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    context: Context,
    *,
    dropout_rate: float,
    layer: jax.Array | int,
) -> tuple[jax.Array, jax.Array]:
    """softmax(q kᵀ / sqrt(K) + bias) v; returns outputs [B, L, H, K] and weights [B, H, L, S].

    The H query heads share the G key/value heads in equal groups of R. Logits and softmax are
    float32. A query that may attend to nothing has weights 0, output 0 and gradient 0.
    """
    B, L, H, K = q_BLHK.shape
    S, G = k_BSGK.shape[1:3]
    q_BLGRK = q_BLHK.reshape(B, L, G, H // G, K)
    logits_BGRLS = jnp.einsum(
        "BLGRK,BSGK->BGRLS", q_BLGRK, k_BSGK, preferred_element_type=jnp.float32
    )
    logits_BHLS = logits_BGRLS.reshape(B, H, L, S) * K**-0.5
    bias = context.encoding.bias(context.q_positions_BL, context.k_positions_BS)
    if bias is not None:
        logits_BHLS = logits_BHLS + bias
    mask = masks.attention_mask(context.visibility)[:, None]
    allow = context.encoding.allow(context.q_positions_BL, context.k_positions_BS)
    if allow is not None:
        mask = mask & allow
    weights_BHLS = masked_softmax(logits_BHLS, mask)
    dropped = dropout(weights_BHLS, dropout_rate, context.key, "attention_weights", layer)
    out_BLGRK = jnp.einsum(
        "BGRLS,BSGK->BLGRK",
        dropped.reshape(B, G, H // G, L, S).astype(v_BSGK.dtype),
        v_BSGK,
        preferred_element_type=jnp.float32,
    )
    return out_BLGRK.reshape(B, L, H, K).astype(q_BLHK.dtype), weights_BHLS


def masked_softmax(logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax over the last axis among entries where mask is True; all masked gives zeros.

    `mask` has the rank of `logits` and broadcasts to its shape; anything else raises.
    """
    if jnp.broadcast_shapes(logits.shape, mask.shape) != logits.shape or mask.ndim != logits.ndim:
        raise ValueError(f"mask {mask.shape} does not broadcast to logits {logits.shape}")
    logits = jnp.where(mask, logits, -jnp.inf)
    # A finite maximum keeps a fully masked row from computing inf - inf.
    highest = jax.lax.stop_gradient(jnp.maximum(logits.max(-1, keepdims=True), -1e30))
    unnormalised = jnp.exp(logits - highest)
    total = unnormalised.sum(-1, keepdims=True)
    return unnormalised / jnp.where(total == 0, 1, total)
