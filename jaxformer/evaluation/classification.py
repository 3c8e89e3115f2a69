"""Classes: loss, accuracy, and macro F1 from counts that add up over batches."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import losses
from jaxformer.models import forward

COUNTS = "class_counts"  # float32[3, classes]: right, predicted and true examples of each class


@dataclasses.dataclass(frozen=True)
class Classification:
    """Nats and accuracy per labelled text or token, and what macro F1 is made from."""

    needs_task = False

    def sums(
        self, model: Any, batch: Mapping[str, jax.Array]
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        logits, targets, weights = forward(model, batch).logits, batch["targets"], batch["weights"]
        guesses, classes = logits.argmax(-1), logits.shape[-1]
        counted = [guesses == targets, jnp.ones_like(guesses, bool), jnp.ones_like(guesses, bool)]
        counts = [
            jnp.zeros(classes).at[index.ravel()].add((which * weights).ravel())
            for which, index in zip(counted, (targets, guesses, targets), strict=True)
        ]
        supervised = logits, targets, weights
        return {
            "loss": losses.cross_entropy(*supervised),
            "accuracy": losses.accuracy(*supervised),
            COUNTS: (jnp.stack(counts), weights.sum()),
        }


def macro_f1(counts_3K: np.ndarray) -> tuple[float, float]:
    """(sum, number) of the F1 of the classes that are true or predicted at least once.

    F1 = 2 · right / (predicted + true); a class that is neither is left out, as in scikit-learn.
    """
    right_K, predicted_K, true_K = np.asarray(counts_3K, np.float64)
    either_K = predicted_K + true_K
    occurs_K = either_K > 0
    return float((2 * right_K[occurs_K] / either_K[occurs_K]).sum()), float(occurs_K.sum())
