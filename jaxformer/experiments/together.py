"""Evaluates the seeds of an arm together: at each length one call for all of them.

Tests that are sampled are the same for all seeds, have one shape, and their length is traced, so
that an arm compiles one program. Those that the host makes come in few shapes, and are each seed's
own: none of them is a sentence of its training.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxformer.data import Data
from jaxformer.evaluation.evaluators import Batch, Total, total_sums
from jaxformer.evaluation.inputs import length_evaluators, read_inputs
from jaxformer.evaluation.lengths import Examples
from jaxformer.evaluation.suite import SuiteConfig
from jaxformer.evaluation.task_tests import TaskTests, length_sums, shape_of
from jaxformer.experiments.programs import at, over_seeds, seed_mesh, stack
from jaxformer.nn.positions.sources import document_limit
from jaxformer.run import Run

ByLength = dict[int, Mapping[str, Total]]


def evaluate_together(
    runs: Sequence[Run], data: Sequence[Data], suite: SuiteConfig
) -> list[ByLength]:
    """The totals of each run at the suite's lengths; the runs differ in nothing but their seeds,
    and `data` are theirs in turn.

    [] where the tests are no task's, or of other lengths for some seeds.
    """
    if any(own.task is None for own in data):
        return []
    pairs = zip(runs, data, strict=True)
    examples = [read_inputs(run.config, own, suite).examples for run, own in pairs]
    lengths = {tuple(one.length for one in own) for own in examples}
    if len(lengths) > 1 or () in lengths:
        return []
    graphdef, _ = nnx.split(runs[0].model)
    params = [nnx.to_pure_dict(nnx.split(run.model)[1]) for run in runs]
    stacked = jax.tree.map(lambda *leaves: np.stack(jax.device_get(leaves)), *params)
    found: list[ByLength] = [{} for _ in runs]
    for length, parts in _all_sums(runs, graphdef, stacked, data[0], suite, examples):
        host = jax.device_get(parts)
        for index, by_length in enumerate(found):
            totals = total_sums([at(part, index) for part in host])
            by_length[length] = {name: total for name, total in totals.items() if total.weight}
    return found


def _all_sums(
    runs: Sequence[Run],
    graphdef: Any,
    params: Any,
    data: Data,
    suite: SuiteConfig,
    examples: Sequence[Sequence[Examples]],
) -> Any:
    """Yields (length, sums of its batches), every array with the seeds in front."""
    cfg, mesh = runs[0].config, seed_mesh(len(runs))
    evaluators = length_evaluators(cfg, data, suite)
    first = examples[0][0]
    if isinstance(first, TaskTests):
        shape = shape_of(first.sampler, cfg.eval.batch_size, first.longest)
        fixed = evaluators, graphdef, first.sampler, shape, first.num_examples
        program = over_seeds(functools.partial(length_sums, *fixed), mesh, shared=2)
        for one in examples[0]:
            yield one.length, [program(params, np.uint32(first.seed), np.int32(one.length))]
        return

    def sums(params: Any, batch: Mapping[str, jax.Array]) -> Any:
        model = nnx.merge(graphdef, params)
        return {k: v for e in evaluators for k, v in e.sums(model, batch).items()}

    program, bound = over_seeds(sums, mesh), document_limit(cfg.model).tokens
    for same in zip(*examples, strict=True):
        streams = [one.batches(cfg.eval.batch_size, bound) for one in same]
        batches = (stack(_of_one_width(own)) for own in zip(*streams, strict=True))
        yield same[0].length, [program(params, batch) for batch in batches]


def _of_one_width(batches: Sequence[Batch]) -> list[dict[str, np.ndarray]]:
    """Batches with padding on the right, so that all are as wide as the widest."""
    width = max(batch["tokens"].shape[1] for batch in batches)

    def wide(rows: np.ndarray) -> np.ndarray:
        return np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) if rows.ndim == 2 else rows

    return [{name: wide(rows) for name, rows in batch.items()} for batch in batches]
