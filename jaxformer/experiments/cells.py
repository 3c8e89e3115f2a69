"""The cells of a sweep: a grid of settings times seeds, all checked before any is trained.

A cell is one run: a config and a seed. Its name is a hash of the resolved config and of what its
data, and its teacher, hold, so that whatever would change its numbers makes it another cell.
"""

import copy
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxformer.config import RunConfig
from jaxformer.data import Data, open_data, resolve
from jaxformer.data.cache import fingerprint
from jaxformer.data.tasks import make_sampler
from jaxformer.errors import UserError
from jaxformer.evaluation.inputs import read_inputs
from jaxformer.evaluation.lengths import parse_lengths, trained_up_to
from jaxformer.evaluation.suite import SuiteConfig, load_suite
from jaxformer.experiments.axes import Axis, check_fields
from jaxformer.experiments.selection import check_selection
from jaxformer.models import abstract_params, build
from jaxformer.nn.positions import check_bounds
from jaxformer.sharding import check_batch, make_mesh
from jaxformer.training.teacher import load_teacher


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep: its setting on each axis, its seed, and the name of its folder.

    `evaluation` is a hash of the suite: results of another one are not the cell's. The others
    are for tables: the task, its greatest length in training, the size of the model, and the seed
    of the data where it is not that of the parameters.
    """

    arm: Mapping[str, str]
    seed: int
    name: str
    evaluation: str
    task: str = ""
    trained_up_to: int | None = None
    num_parameters: int = 0
    data_seed: int | None = None

    @property
    def title(self) -> str:
        return " ".join(
            f"{name}={value}" for name, value in (*self.arm.items(), ("seed", self.seed))
        )


@dataclasses.dataclass(frozen=True)
class Job:
    """What a cell trains, by its resolved config, and how that is evaluated."""

    cell: Cell
    config: RunConfig
    suite: SuiteConfig


def plan(
    base: Mapping[str, Any],
    axes: Sequence[Axis],
    num_seeds: int,
    *,
    suite: str = "",
    lengths: str = "",
    select: str = "last",
) -> list[Job]:
    """Every cell: the product of the axes, the last one fastest, seeds in turn within.

    Seed k is base["seed"] + k. `suite` is a name ('': the one for the data) and `lengths`, if
    given, replaces its lengths; those that a model has no positions for are left out of its
    results. `select` names the checkpoint that is evaluated. Reads the data and checks every
    config; writes nothing. Raises UserError, which names the cell.
    """
    if lengths:
        parse_lengths(lengths)
    check_fields(axes)
    opened: dict[Any, Data] = {}
    teachers: dict[Any, str] = {}
    jobs: list[Job] = []
    for settings in itertools.product(*(axis.settings for axis in axes)):
        arm = {axis.field: setting.text for axis, setting in zip(axes, settings, strict=True)}
        values = copy.deepcopy(dict(base))
        for path, value in itertools.chain.from_iterable(s.changes for s in settings):
            _set(values, path, value)
        try:
            cfg, data = _resolve(values, opened)
            found = load_suite(suite, cfg.data, cfg.objective.kind)
            found = dataclasses.replace(found, lengths=lengths) if lengths else found
            read_inputs(cfg, data, found)
            check_selection(select, cfg)
            inputs = data.train.fingerprint, _teacher(cfg, data, teachers)
            jobs += _jobs(arm, cfg, found, num_seeds, inputs, select)
        except UserError as error:
            where = ", ".join(f"{name}={text}" for name, text in arm.items())
            of = f" (in the cell {where})" if where else ""
            raise UserError(error.where, error.what + of, error.mend) from error
    seen: dict[str, Cell] = {}
    for job in jobs:
        other = seen.setdefault(job.cell.name, job.cell)
        if other is not job.cell:
            what = f"make one and the same cell of {other.title} and {job.cell.title}"
            raise UserError("--axis", what, "leave one out")
    return jobs


def _resolve(values: Mapping[str, Any], opened: dict[Any, Data]) -> tuple[RunConfig, Data]:
    """The resolved config and its data; `opened` keeps data, as they are with seed 0.

    Of packed pairs another seed may make a row more or fewer: all seeds take seed 0's steps.
    """
    cfg = RunConfig.from_config_dict(values)
    check_bounds(cfg)
    key = cfg.data, cfg.objective, cfg.model.position.source.kind  # tasks couple ids
    if key not in opened:
        opened[key] = open_data(dataclasses.replace(cfg, seed=0), None)
    elif cfg.data.source == "task":
        make_sampler(cfg)  # raises where the ids of this model are too few
    cfg = resolve(cfg, opened[key])
    train = cfg.train
    check_batch(make_mesh(cfg.mesh), "train.batch_size", train.batch_size, train.num_microbatches)
    return cfg, opened[key]


def _teacher(cfg: RunConfig, data: Data, known: dict[Any, str]) -> str:
    """A hash of what an arm's teacher computes, '' without one; equal arms read it once."""
    key = cfg.objective, cfg.data, cfg.mesh, cfg.model.vocab_size, cfg.model.head.num_classes
    if cfg.objective.distillation.teacher and key not in known:
        teacher = load_teacher(cfg, data)
        assert teacher is not None
        its = teacher.config
        known[key] = fingerprint(teacher.fingerprint, its.model.to_dict(), its.compute_dtype)
    return known.get(key, "")


def _jobs(
    arm: Mapping[str, str],
    cfg: RunConfig,
    suite: SuiteConfig,
    num_seeds: int,
    inputs: tuple[str, str],
    select: str,
) -> list[Job]:
    """The cells of one arm; `inputs` are the fingerprints of data and teacher ('': none)."""
    parameters = jax.tree.leaves(abstract_params(build(cfg.model, cfg.compute_dtype)))
    size = sum(math.prod(leaf.shape) for leaf in parameters)
    others = [] if select == "last" else [select]
    evaluation = fingerprint("evaluation", suite.to_dict(), *others)
    is_sampled = cfg.data.source == "task"
    task = cfg.data.task.name if is_sampled else cfg.data.source
    of_data = cfg.data_seed if cfg.data.seed else None
    jobs = []
    for seed in range(cfg.seed, cfg.seed + num_seeds):
        seeded = dataclasses.replace(cfg, seed=seed)
        seeded.check()
        values, (data, taught) = seeded.to_dict(), inputs
        values["objective"]["distillation"]["teacher"] = taught  # wherever it lies
        name = fingerprint("cell", values, data)
        cell = Cell(arm, seed, name, evaluation, task, trained_up_to(cfg), size, of_data)
        jobs.append(Job(cell, seeded, suite))
    return jobs


def _set(values: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for part in above:
        values = values[part]
    values[name] = value
