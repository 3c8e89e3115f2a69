"""Evaluators: what is summed over rows, divided once at the end.

An evaluator is a frozen object whose `sums(model, batch)` runs inside one jitted function of
(params, batch) and returns {metric: (sum, weight)}. Sums of batches are added as Python floats, so
a result does not depend on the batch size, and rows of weight 0 that fill a last batch add nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxformer import losses, sharding
from jaxformer.config import RunConfig
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.packing import RowSource
from jaxformer.evaluation.classification import COUNTS, Classification, class_counts, macro_f1
from jaxformer.evaluation.protocol import Protocol as TaskProtocol
from jaxformer.evaluation.statistics import ratio
from jaxformer.models import forward, sums_over

Batch = Mapping[str, np.ndarray]
Sums = dict[str, tuple[jax.Array, jax.Array]]


class Total(NamedTuple):
    """A sum over examples and the sum of their weights."""

    sum: float
    weight: float

    @property
    def mean(self) -> float:
        return ratio(self.sum, self.weight)


class Evaluator(Protocol):
    """Hashable; `needs_task`: reads arrays that only the test examples of a task have."""

    @property
    def needs_task(self) -> bool: ...

    def sums(self, model: Any, batch: Mapping[str, jax.Array]) -> Sums: ...


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """Nats per supervised token and accuracy of the most probable one, targets given."""

    needs_task = False

    def sums(self, model: Any, batch: Mapping[str, jax.Array]) -> Sums:
        def score(*supervised: jax.Array) -> Sums:
            loss, accuracy = losses.cross_entropy(*supervised), losses.accuracy(*supervised)
            return {"loss": loss, "accuracy": accuracy}

        out = forward(model, batch)
        return sums_over(model, out, batch["targets"], batch["weights"], score)


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """Share of rows whose every supervised token is the most probable one, targets given.

    Where the supervised tokens are the end of their row (the end token among them) this equals
    the exact match of greedy generation: both take the same prefix up to the first error.
    """

    needs_task = False

    def sums(self, model: Any, batch: Mapping[str, jax.Array]) -> Sums:
        shape = (len(batch["weights"]), -1)  # a class of a whole text is one target
        supervised_BL = (batch["weights"] > 0).reshape(shape)
        right_BL = (_logits(model, batch).argmax(-1) == batch["targets"]).reshape(shape)
        counted_B = supervised_BL.any(-1)
        right_B = (right_BL | ~supervised_BL).all(-1) & counted_B
        return {"exact_match": (_count(right_B), _count(counted_B))}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Share of sentences where P(correct verb form) > P(wrong form) after the prefix.

    A batch has `verb_index`, the place of the last token before the verb, `correct` and `wrong`,
    int32[B], and `counted` bool[B], false in filling rows.
    """

    needs_task = True

    def sums(self, model: Any, batch: Mapping[str, jax.Array]) -> Sums:
        logits_BLV = _logits(model, batch)
        rows_B = jnp.arange(logits_BLV.shape[0])
        logits_BV = logits_BLV[rows_B, batch["verb_index"]]
        right_B = logits_BV[rows_B, batch["correct"]] > logits_BV[rows_B, batch["wrong"]]
        return {"agreement": (_count(right_B & batch["counted"]), _count(batch["counted"]))}


EVALUATORS: dict[str, Evaluator] = {
    "perplexity": Perplexity(),
    "exact_match": ExactMatch(),
    "agreement": Agreement(),
    "classification": Classification(),
    "protocol": TaskProtocol(),
}


def evaluate_batches(
    evaluators: tuple[Evaluator, ...],
    graphdef: Any,
    params: Any,
    batches: Iterable[Batch],
    mesh: Mesh | None = None,
) -> dict[str, Total]:
    """Sums of all evaluators over all batches; compiles once for each shape of batch.

    With `mesh` the batches are this process's rows, else all of them, to be spread over the mesh
    that the parameters lie on. Counts of classes become macro F1, a sum over classes.
    """
    return total_sums(batch_sums(evaluators, graphdef, params, batches, mesh))


def batch_sums(
    evaluators: tuple[Evaluator, ...],
    graphdef: Any,
    params: Any,
    batches: Iterable[Batch],
    mesh: Mesh | None = None,
) -> list[dict[str, Any]]:
    """The sums of each batch, on the host; arguments as for `evaluate_batches`."""
    put = sharding.put_whole if mesh is None else sharding.put_batch
    mesh = sharding.mesh_of(params) if mesh is None else mesh
    with sharding.using(mesh):
        parts = [_sums(params, put(mesh, dict(batch)), evaluators, graphdef) for batch in batches]
    return jax.device_get(parts)


def total_sums(parts: Iterable[Mapping[str, Any]]) -> dict[str, Total]:
    """Adds the sums of batches, arrays of the host, as Python floats."""
    totals: dict[str, Total] = {}
    parts = list(parts)
    for part in parts:
        for name, (total, weight) in part.items():
            if name == COUNTS:
                continue
            before = totals.get(name, Total(0.0, 0.0))
            totals[name] = Total(before.sum + float(total), before.weight + float(weight))
    if (counts := class_counts(parts)) is not None:
        totals["macro_f1"] = Total(*macro_f1(counts))
    return totals


def validator(cfg: RunConfig) -> Evaluator:
    """The evaluator of the training loop."""
    return EVALUATORS["classification" if cfg.objective.has_labels else "perplexity"]


def validation(
    cfg: RunConfig, graphdef: Any, source: RowSource, mesh: Mesh | None
) -> Callable[[Any], dict[str, float]]:
    """The training loop's evaluation: params -> {'loss', 'accuracy', 'tokens'} on `source`.

    Classifiers have 'macro_f1' too, and their tokens are what has a class. Batches are rounded up
    to a multiple of the devices, which changes no result.
    """
    shards = sharding.num_shards(mesh)
    batch_size = -(-cfg.eval.batch_size // shards) * shards
    part = sharding.place(mesh)
    evaluator = validator(cfg)

    def evaluate(params: Any) -> dict[str, float]:
        batches = evaluation_batches(source, batch_size, cfg.eval.max_rows, *part)
        totals = evaluate_batches((evaluator,), graphdef, params, batches, mesh)
        means = {name: total.mean for name, total in totals.items()}
        return means | {"tokens": round(totals["loss"].weight)}

    return evaluate


@functools.partial(jax.jit, static_argnames=("evaluators", "graphdef"))
def _sums(
    params: Any, batch: Mapping[str, jax.Array], evaluators: tuple[Evaluator, ...], graphdef: Any
) -> Sums:
    model = nnx.merge(graphdef, params)
    sums = {k: v for evaluator in evaluators for k, v in evaluator.sums(model, batch).items()}
    return jax.tree.map(sharding.replicate, sums)  # every process reads them


def _logits(model: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """float32[B, L, V]; several evaluators in one jitted function share the forward pass."""
    return forward(model, batch).logits


def _count(true_B: jax.Array) -> jax.Array:
    return true_B.sum(dtype=jnp.float32)
