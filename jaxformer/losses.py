"""Losses as (sum, weight) pairs, divided once, after everything has been summed."""

import jax
import jax.numpy as jnp


def cross_entropy(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Weighted sum of -log softmax(logits)[target] in nats, and the sum of weights; float32.

    logits [..., V], targets int[...], weights [...]. A target of weight 0 may be any number: it
    adds neither loss nor gradient. `label_smoothing` ε trains towards (1 - ε) one-hot + ε / V
    (Szegedy et al. 2016 §7); `z_loss` adds z_loss · logsumexp² (Chowdhery et al. 2022 §5).
    """
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    targets = jnp.where(weights != 0, targets, 0)
    log_normaliser = jax.nn.logsumexp(logits, -1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    loss = log_normaliser - target_logit
    if label_smoothing:
        uniform = log_normaliser - logits.mean(-1)
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform
    if z_loss:
        loss = loss + z_loss * jnp.square(log_normaliser)
    return jnp.where(weights != 0, loss * weights, 0).sum(), weights.sum()


def accuracy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Weight of the tokens whose target has the highest logit, and the sum of weights."""
    weights = weights.astype(jnp.float32)
    return ((logits.argmax(-1) == targets) * weights).sum(), weights.sum()
