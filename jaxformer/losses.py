"""Losses as (sum, weight) pairs, divided once, after everything has been summed."""

import jax
import jax.numpy as jnp

# By how much more is taken from the target for ε to be what the target loses in all.
SPREAD = {
    "all": lambda num_classes: 1.0,
    "others": lambda num_classes: num_classes / (num_classes - 1),
}


def cross_entropy(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    *,
    label_smoothing: float = 0.0,
    smoothing: str = "all",
    z_loss: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Weighted sum of -log softmax(logits)[target] in nats, and the sum of weights; float32.

    logits [..., V], targets int[...], weights [...]. A target of weight 0 may be any number: it
    adds neither loss nor gradient. `label_smoothing` ε trains towards (1 - ε) one-hot plus, by
    `smoothing`, ε / V on all classes ('all', Szegedy et al. 2016 §7, PyTorch) or ε / (V - 1) on
    all others ('others', the code of Vaswani et al. 2017): the latter is the former with
    ε V / (V - 1). `z_loss` adds z_loss · logsumexp² (Chowdhery et al. 2022 §5).
    """
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    targets = jnp.where(weights != 0, targets, 0)
    log_normaliser = jax.nn.logsumexp(logits, -1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    loss = log_normaliser - target_logit
    if label_smoothing:
        uniform = log_normaliser - logits.mean(-1)
        share = label_smoothing * SPREAD[smoothing](logits.shape[-1])
        loss = (1 - share) * loss + share * uniform
    if z_loss:
        loss = loss + z_loss * jnp.square(log_normaliser)
    return jnp.where(weights != 0, loss * weights, 0).sum(), weights.sum()


def distillation(
    logits: jax.Array, teacher_logits: jax.Array, weights: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Weighted sum of T² KL(teacher || student) in nats, and the sum of weights; float32.

    Logits [..., V] are divided by T before the softmax; T² keeps gradients at the size that they
    have at T = 1 (Hinton et al. 2015 §2). The teacher's have no gradient.
    """
    weights = weights.astype(jnp.float32)
    of_student = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    teacher_logits = jax.lax.stop_gradient(teacher_logits.astype(jnp.float32))
    of_teacher = jax.nn.log_softmax(teacher_logits / temperature)
    loss = temperature**2 * (jnp.exp(of_teacher) * (of_teacher - of_student)).sum(-1)
    return jnp.where(weights != 0, loss * weights, 0).sum(), weights.sum()


def accuracy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Weight of the tokens whose target has the highest logit, and the sum of weights."""
    weights = weights.astype(jnp.float32)
    return ((logits.argmax(-1) == targets) * weights).sum(), weights.sum()
