"""The optimizer, at learning rate 1, and the schedule that scales its updates.

The step function multiplies the updates by schedule(step + 1), so a run's step is the only clock
(an update that was skipped does not hold the schedule back) and the first update is not a no-op.
"""

from typing import Any

import jax
import optax

from jaxformer.config import OptimizerConfig, RunConfig, ScheduleConfig

DECAYED = ("kernel", "table")


def make_optimizer(cfg: RunConfig) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns (tx, schedule); the updates of tx are for a learning rate of 1."""
    return OPTIMIZERS[cfg.optimizer.kind](cfg.optimizer), SCHEDULES[cfg.schedule.kind](cfg.schedule)


def decay_mask(params: Any) -> Any:
    """True for the leaves that are decayed, chosen by name: a stacked scale has rank 2 too."""
    return jax.tree_util.tree_map_with_path(lambda keys, _: keys[-1].key in DECAYED, params)


def _adamw(cfg: OptimizerConfig) -> optax.GradientTransformation:
    clip = (optax.clip_by_global_norm(cfg.clip_norm),) if cfg.clip_norm else ()
    return optax.chain(
        *clip,
        optax.scale_by_adam(cfg.b1, cfg.b2, cfg.epsilon),
        optax.add_decayed_weights(cfg.weight_decay, decay_mask),
        optax.scale(-1.0),
    )


def _warmup_cosine(cfg: ScheduleConfig) -> optax.Schedule:
    return optax.warmup_cosine_decay_schedule(
        cfg.init_value, cfg.peak_value, cfg.warmup_steps, cfg.decay_steps, cfg.end_value
    )


def _constant(cfg: ScheduleConfig) -> optax.Schedule:
    warmup = optax.linear_schedule(cfg.init_value, cfg.peak_value, cfg.warmup_steps)
    flat = optax.constant_schedule(cfg.peak_value)
    return optax.join_schedules([warmup, flat], [cfg.warmup_steps]) if cfg.warmup_steps else flat


OPTIMIZERS = {"adamw": _adamw}
SCHEDULES = {"warmup_cosine": _warmup_cosine, "constant": _constant}
