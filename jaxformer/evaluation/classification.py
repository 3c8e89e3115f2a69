"""Classes: loss, accuracy, and F1, macro and by class, from counts that add up over batches."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import losses
from jaxformer.evaluation.statistics import ratio, wilson
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


def class_counts(parts: Iterable[Mapping[str, Any]]) -> np.ndarray | None:
    """float64[3, classes]: the counts of all batches; None where none has any."""
    found = [np.asarray(part[COUNTS][0], np.float64) for part in parts if COUNTS in part]
    return np.sum(found, axis=0) if found else None


def class_records(counts_3K: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of classes.csv: precision, recall and F1 of each class; 0 of nothing is 0.

    Precision and recall have Wilson's 95 % interval and the number of examples they are shares of.
    """
    rows = []
    for name, (right, predicted, true) in zip(classes, np.asarray(counts_3K).T, strict=True):
        shares = {"precision": (right, predicted), "recall": (right, true)}
        values: dict[str, tuple[Any, ...]] = {
            metric: (ratio(*pair), *wilson(*pair), pair[1]) for metric, pair in shares.items()
        }
        values["f1"] = (ratio(2 * right, predicted + true), "", "", true)
        for metric, (value, low, high, weight) in values.items():
            numbers = {"value": float(value), "low": low, "high": high, "weight": float(weight)}
            rows.append({"class": name, "metric": metric} | numbers)
    return rows


def class_table(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a class, shares in per cent."""
    table: dict[str, dict[str, Any]] = {}
    for row in records:
        named = table.setdefault(row["class"], {"class": row["class"]})
        named[f"{row['metric']} %"] = f"{100 * row['value']:.1f}"
        if row["metric"] == "recall":
            named["examples"] = f"{row['weight']:,.0f}"
    return list(table.values())


def macro_f1(counts_3K: np.ndarray) -> tuple[float, float]:
    """(sum, number) of the F1 of the classes that are true or predicted at least once.

    F1 = 2 · right / (predicted + true); a class that is neither is left out, as in scikit-learn.
    """
    right_K, predicted_K, true_K = np.asarray(counts_3K, np.float64)
    either_K = predicted_K + true_K
    occurs_K = either_K > 0
    return float((2 * right_K[occurs_K] / either_K[occurs_K]).sum()), float(occurs_K.sum())
