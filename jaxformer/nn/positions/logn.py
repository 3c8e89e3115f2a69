"""Attention that stays sharp on longer texts: queries grow with the logarithm of their length."""

import math

import jax
import jax.numpy as jnp


def scale_queries(
    q_BLHK: jax.Array, positions_BL: jax.Array, extents_BL: jax.Array, length: int, causal: bool
) -> jax.Array:
    """Queries at n > length tokens times ln n / ln length; length 0: as they are.

    n is position + 1 in a causal model and the document's extent in an encoder: ids count, so
    offset and randomized ones are longer texts. Chiang and Cholak 2022 multiply all logits by
    ln n; as in Qwen's published code, texts up to the training length stay as they are, so that a
    trained model can be given the scale afterwards. SSMax (Nakanishi 2025) is this with a trained
    factor a head.
    """
    if not length:
        return q_BLHK
    n_BL = positions_BL + 1 if causal else extents_BL
    grown_BL = jnp.log(n_BL.astype(jnp.float32)) / math.log(length)
    grown_BL = jnp.where(n_BL > length, grown_BL, 1.0)
    return (q_BLHK * grown_BL[..., None, None]).astype(q_BLHK.dtype)
