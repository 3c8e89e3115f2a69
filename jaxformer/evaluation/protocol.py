"""How a task is scored: exact match in three readings, token accuracy and loss, all by length.

All are measured with the target given. That makes no difference to an exact match: an argmax of
the model after the true prefix and after its own differ only where it has erred already (dynamic
NTK apart, which sees how long the whole document is). Token accuracy is another number when a model
reads its own output, so it is called `token_accuracy_tf`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer import losses
from jaxformer.models import forward

Sums = dict[str, tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Of rows whose last supervised token is their end:

    `exact_match` all of it, the end too; `exact_match_no_eos` all but the end;
    `exact_match_oracle_length` all but the end where the model may not end (Newman et al. 2020);
    `token_accuracy_tf` of supervised tokens, `nll` in nats for each.
    """

    needs_task = False

    def sums(self, model: Any, batch: Mapping[str, jax.Array]) -> Sums:
        logits_BLV = forward(model, batch).logits
        targets_BL, weights_BL = batch["targets"], batch["weights"]
        supervised_BL = weights_BL > 0
        counted_B = supervised_BL.any(1)
        index_BL = jnp.broadcast_to(jnp.arange(weights_BL.shape[1])[None], weights_BL.shape)
        last_B1 = jnp.where(supervised_BL, index_BL, 0).max(1, keepdims=True)
        is_end_BL = index_BL == last_B1
        end_B11 = jnp.take_along_axis(targets_BL, last_B1, axis=1)[..., None]
        is_other_BLV = jnp.arange(logits_BLV.shape[-1])[None, None] != end_B11
        right_BL = logits_BLV.argmax(-1) == targets_BL
        forced_BL = jnp.where(is_other_BLV, logits_BLV, -jnp.inf).argmax(-1) == targets_BL
        matches = {
            "exact_match": right_BL,
            "exact_match_no_eos": right_BL | is_end_BL,
            "exact_match_oracle_length": forced_BL | is_end_BL,
        }
        examples = counted_B.sum(dtype=jnp.float32)
        found: Sums = {
            name: (
                ((match_BL | ~supervised_BL).all(1) & counted_B).sum(dtype=jnp.float32),
                examples,
            )
            for name, match_BL in matches.items()
        }
        found["token_accuracy_tf"] = losses.accuracy(logits_BLV, targets_BL, weights_BL)
        found["nll"] = losses.cross_entropy(logits_BLV, targets_BL, weights_BL)
        return found
