"""The spike guard: an update whose gradient norm is far from the recent ones is not made.

The norm's z-score is taken against an exponential mean and variance, which are plain averages at
first (the newest norm weighs max(1 - decay, 1 / n) of n). Of a spike only `threshold` deviations
count for them, so that a norm that has risen for good is a spike for a few steps only. Chowdhery et
al. 2022 (PaLM) §5.1 skip batches around spikes by hand.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxformer.config import SpikeGuardConfig


class Guarded(NamedTuple):
    """The optimizer's state behind a guard: float32 and int32 scalars, and the inner state."""

    mean: jax.Array
    variance: jax.Array
    seen: jax.Array  # norms
    spikes: jax.Array  # updates not made
    inner: Any


def guarded(
    tx: optax.GradientTransformation, cfg: SpikeGuardConfig
) -> optax.GradientTransformation:
    """Wraps an optimizer: at a spike its updates are zero and its state stays as it was."""

    def init(params: Any) -> Guarded:
        zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return Guarded(zero, zero, none, none, tx.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Guarded]:
        norm = optax.tree.norm(updates)
        bound = cfg.threshold * jnp.sqrt(state.variance)
        away = norm - state.mean
        spike = (state.seen >= cfg.warmup_steps) & (away > bound)
        away = jnp.where(spike, bound, away)
        seen = state.seen + 1
        share = jnp.maximum(1 - cfg.decay, 1 / seen.astype(jnp.float32))
        updates, inner = tx.update(updates, state.inner, params)
        updates = jax.tree.map(lambda u: jnp.where(spike, jnp.zeros_like(u), u), updates)
        return updates, Guarded(
            mean=state.mean + share * away,
            variance=(1 - share) * (state.variance + share * away**2),
            seen=seen,
            spikes=state.spikes + spike.astype(jnp.int32),
            inner=jax.tree.map(lambda n, o: jnp.where(spike, o, n), inner, state.inner),
        )

    return optax.GradientTransformation(init, update)


def spikes(opt_state: Any) -> dict[str, jax.Array]:
    """The guard's count for the metrics; {} where there is no guard."""
    return {"spikes": opt_state.spikes} if isinstance(opt_state, Guarded) else {}
