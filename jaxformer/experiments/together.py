"""Evaluates the seeds of an arm together: at each length one call for all of them.

Tests of a task are the same for all seeds. Those that are sampled have one shape and their length
is traced, so that an arm compiles one program; those that the host makes come in few shapes.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxformer.data import Data
from jaxformer.evaluation.evaluators import Total, total_sums
from jaxformer.evaluation.inputs import length_evaluators, read_inputs
from jaxformer.evaluation.lengths import Examples
from jaxformer.evaluation.suite import SuiteConfig
from jaxformer.evaluation.task_tests import TaskTests, length_sums, shape_of
from jaxformer.experiments.programs import at, over_seeds, seed_mesh
from jaxformer.nn.positions.sources import document_limit
from jaxformer.run import Run

ByLength = dict[int, Mapping[str, Total]]


def evaluate_together(runs: Sequence[Run], data: Data, suite: SuiteConfig) -> list[ByLength]:
    """The totals of each run at the suite's lengths; the runs differ in nothing but their seeds.

    [] where the tests are no task's and may differ between seeds.
    """
    examples = read_inputs(runs[0].config, data, suite).examples
    if data.task is None or not examples:
        return []
    graphdef, _ = nnx.split(runs[0].model)
    params = [nnx.to_pure_dict(nnx.split(run.model)[1]) for run in runs]
    stacked = jax.tree.map(lambda *leaves: np.stack(jax.device_get(leaves)), *params)
    found: list[ByLength] = [{} for _ in runs]
    for length, parts in _all_sums(runs, graphdef, stacked, data, suite, examples):
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
    examples: Sequence[Examples],
) -> Any:
    """Yields (length, sums of its batches), every array with the seeds in front."""
    cfg, mesh = runs[0].config, seed_mesh(len(runs))
    evaluators = length_evaluators(cfg, data, suite)
    first = examples[0]
    if isinstance(first, TaskTests):
        shape = shape_of(first.sampler, cfg.eval.batch_size, first.longest)
        fixed = evaluators, graphdef, first.sampler, shape, first.num_examples
        program = over_seeds(functools.partial(length_sums, *fixed), mesh, shared=2)
        for one in examples:
            yield one.length, [program(params, np.uint32(first.seed), np.int32(one.length))]
        return

    def sums(params: Any, batch: Mapping[str, jax.Array]) -> Any:
        model = nnx.merge(graphdef, params)
        return {k: v for e in evaluators for k, v in e.sums(model, batch).items()}

    program, bound = over_seeds(sums, mesh, shared=1), document_limit(cfg.model).tokens
    for one in examples:
        batches = one.batches(cfg.eval.batch_size, bound)
        yield one.length, [program(params, dict(batch)) for batch in batches]
