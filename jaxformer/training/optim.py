"""The optimizer, at learning rate 1, and the schedule that scales its updates.

The step function multiplies the updates by schedule(step + 1), so a run's step is the only clock
(an update that was skipped does not hold the schedule back) and the first update is not a no-op.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from jaxformer.config import OptimizerConfig, RunConfig, ScheduleConfig
from jaxformer.training.guard import guarded
from jaxformer.training.muon import muon_labels, muon_updates

DECAYED = ("kernel", "table")


def make_optimizer(cfg: RunConfig) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns (tx, schedule); the updates of tx are for a learning rate of 1."""
    tx, guard = OPTIMIZERS[cfg.optimizer.kind](cfg.optimizer), cfg.train.spike_guard
    return guarded(tx, guard) if guard.threshold else tx, SCHEDULES[cfg.schedule.kind](cfg.schedule)


def decay_mask(params: Any) -> Any:
    """True for the leaves that are decayed, chosen by name: a stacked scale has rank 2 too."""
    return jax.tree_util.tree_map_with_path(lambda keys, _: keys[-1].key in DECAYED, params)


def _adamw(cfg: OptimizerConfig) -> optax.GradientTransformation:
    decay = optax.add_decayed_weights(cfg.weight_decay, decay_mask)
    return optax.chain(*_clipped_adam(cfg), decay, optax.scale(-1.0))


def _adam(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """No decay of any kind; Vaswani et al. 2017 §5.3 has b1 .9, b2 .98, epsilon 1e-9."""
    return optax.chain(*_clipped_adam(cfg), optax.scale(-1.0))


def _muon(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Muon on the layers' kernels, each matrix by itself, and AdamW on all else."""
    of_matrices, of_others = (
        muon_updates(cfg.muon),
        optax.chain(
            optax.scale_by_adam(cfg.b1, cfg.b2, cfg.epsilon),
            optax.add_decayed_weights(cfg.weight_decay, decay_mask),
        ),
    )
    parts = optax.partition({"muon": of_matrices, "adamw": of_others}, muon_labels)
    return optax.chain(*_clip(cfg), parts, optax.scale(-1.0))


def _clipped_adam(cfg: OptimizerConfig) -> tuple[optax.GradientTransformation, ...]:
    return (*_clip(cfg), optax.scale_by_adam(cfg.b1, cfg.b2, cfg.epsilon))


def _clip(cfg: OptimizerConfig) -> tuple[optax.GradientTransformation, ...]:
    return (optax.clip_by_global_norm(cfg.clip_norm),) if cfg.clip_norm else ()


def _warmup_cosine(cfg: ScheduleConfig) -> optax.Schedule:
    return optax.warmup_cosine_decay_schedule(
        cfg.init_value, cfg.peak_value, cfg.warmup_steps, cfg.decay_steps, cfg.end_value
    )


def _linear(cfg: ScheduleConfig) -> optax.Schedule:
    """Up to peak_value, then straight down to end_value at decay_steps."""
    points = (cfg.warmup_steps, cfg.peak_value), (cfg.decay_steps, cfg.end_value)
    return _through(cfg, points)


def _wsd(cfg: ScheduleConfig) -> optax.Schedule:
    """Warmup, stable, decay (Hu et al. 2024): the last cooldown_steps fall, here linearly."""
    top = cfg.decay_steps - cfg.cooldown_steps, cfg.peak_value
    points = (cfg.warmup_steps, cfg.peak_value), top, (cfg.decay_steps, cfg.end_value)
    return _through(cfg, points)


def _constant(cfg: ScheduleConfig) -> optax.Schedule:
    return _through(cfg, ((cfg.warmup_steps, cfg.peak_value),))


def _inverse_sqrt(cfg: ScheduleConfig) -> optax.Schedule:
    """peak_value · sqrt(warmup_steps / s) after the warmup.

    Vaswani et al. 2017 §5.3 has the peak 1 / sqrt(d_model · warmup_steps), which makes it
    d_model^-.5 · min(s^-.5, s · warmup_steps^-1.5); s = 0 divides nothing by zero.
    """
    rise, warmup = _constant(cfg), cfg.warmup_steps

    def schedule(step: ArrayLike) -> jax.Array:
        decay = jnp.sqrt(warmup / jnp.maximum(jnp.asarray(step, jnp.float32), warmup))
        return jnp.asarray(rise(step)) * decay

    return schedule


def _through(cfg: ScheduleConfig, points: tuple[tuple[int, float], ...]) -> optax.Schedule:
    """Straight lines from (0, init_value) through (step, value) points, level after the last."""
    known = {0: cfg.init_value} | dict(points)  # a point at step 0 is instead of init_value
    steps, values = np.array(list(known), np.float32), np.array(list(known.values()), np.float32)
    return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), steps, values)


OPTIMIZERS = {"adamw": _adamw, "adam": _adam, "muon": _muon}
SCHEDULES = {
    "warmup_cosine": _warmup_cosine,
    "linear": _linear,
    "inverse_sqrt": _inverse_sqrt,
    "wsd": _wsd,
    "constant": _constant,
}
