"""The exponential moving average of the parameters, kept beside them in the state.

It moves by the distance to the parameters, so that what is frozen has itself as its average in
every bit. Polyak & Juditsky 1992; the exponential one is that of Szegedy et al. 2016 §8.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.config import EmaConfig, EvalConfig
from jaxformer.training.state import TrainState


def average(ema: Any, params: Any, update: jax.Array, cfg: EmaConfig) -> Any:
    """The average after update number `update` (from 1 on); {} stays {}.

    ema + (1 - d)(params - ema), d the decay or while it warms up n / (n + 9) if that is lower.
    """
    if not cfg.decay:
        return ema
    decay = jnp.float32(cfg.decay)
    if cfg.warmup:
        made = update.astype(jnp.float32)
        decay = jnp.minimum(decay, made / (made + 9))
    return jax.tree.map(lambda e, p: e + (1 - decay) * (p - e), ema, params)


def weights(state: TrainState, cfg: EvalConfig) -> Any:
    """The parameters that are evaluated."""
    return {"raw": state.params, "ema": state.ema}[cfg.weights]
