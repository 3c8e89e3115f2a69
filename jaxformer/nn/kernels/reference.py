"""Attention as the formula says, with the whole weight matrix in memory."""

import jax
import jax.numpy as jnp

from jaxformer.nn import masks
from jaxformer.nn.dropout import dropout
from jaxformer.nn.kernels.rule import Rule


def attend(
    q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule
) -> tuple[jax.Array, jax.Array]:
    """Returns outputs [B, L, H, K] and weights float32[B, H, L, S].

    The H query heads share the G key/value heads in equal groups of R. Logits and softmax are
    float32. A query that may attend to nothing has weights 0, output 0 and gradient 0.
    """
    B, L, H, K = q_BLHK.shape
    S, G = k_BSGK.shape[1:3]
    # The R heads of a group and their L queries are N rows of one product, heads before tokens
    # throughout: as a cache is laid out, so that XLA turns no keys or values round.
    q_BGRLK = q_BLHK.reshape(B, L, G, H // G, K).transpose(0, 2, 3, 1, 4)
    q_BGNK, k_BGSK, v_BGSK = (
        q_BGRLK.reshape(B, G, -1, K),
        k_BSGK.swapaxes(1, 2),
        v_BSGK.swapaxes(1, 2),
    )
    logits_BGNS = jnp.einsum("BGNK,BGSK->BGNS", q_BGNK, k_BGSK, preferred_element_type=jnp.float32)
    logits_BHLS = logits_BGNS.reshape(B, H, L, S) * rule.scale
    if rule.softcap:
        logits_BHLS = rule.softcap * jnp.tanh(logits_BHLS / rule.softcap)
    mask = masks.attention_mask(rule.visibility)[:, None]
    encoding = rule.encoding
    if encoding is not None:
        places = rule.places
        bias, allow = encoding.bias(*places), encoding.allow(*places)
        mask = mask if allow is None else mask & allow
        score = encoding.score(q_BLHK, logits_BHLS, mask, *places)
        for term in (bias, score):
            logits_BHLS = logits_BHLS if term is None else logits_BHLS + term
    sink = None if rule.sink_H is None else rule.sink_H[None, :, None, None]
    weights_BHLS = masked_softmax(logits_BHLS, mask, sink)
    dropped = dropout(weights_BHLS, rule.dropout_rate, rule.key, rule.site, rule.layer)
    out_BGNK = jnp.einsum(
        "BGNS,BGSK->BGNK",
        dropped.reshape(B, G, -1, S).astype(v_BSGK.dtype),
        v_BGSK,
        preferred_element_type=jnp.float32,
    )
    out_BLHK = out_BGNK.reshape(B, H, L, K).swapaxes(1, 2)
    mixed = None if encoding is None else encoding.mix(dropped, *rule.places)
    out_BLHK = out_BLHK if mixed is None else out_BLHK + mixed
    return out_BLHK.astype(q_BLHK.dtype), weights_BHLS


def masked_softmax(logits: jax.Array, mask: jax.Array, sink: jax.Array | None = None) -> jax.Array:
    """Softmax over the last axis among entries where mask is True; all masked gives zeros.

    `mask` has the rank of `logits` and broadcasts to its shape; anything else raises. `sink` is
    the logit of one more entry, which takes weight but is not returned.
    """
    if jnp.broadcast_shapes(logits.shape, mask.shape) != logits.shape or mask.ndim != logits.ndim:
        raise ValueError(f"mask {mask.shape} does not broadcast to logits {logits.shape}")
    logits = jnp.where(mask, logits, -jnp.inf)
    highest = logits.max(-1, keepdims=True)
    if sink is not None:
        highest = jnp.maximum(highest, sink)
    # A finite maximum keeps a fully masked row from computing inf - inf.
    highest = jax.lax.stop_gradient(jnp.maximum(highest, -1e30))
    unnormalised = jnp.exp(logits - highest)
    total = unnormalised.sum(-1, keepdims=True)
    if sink is not None:
        total = total + jnp.exp(sink - highest)
    return unnormalised / jnp.where(total == 0, 1, total)
