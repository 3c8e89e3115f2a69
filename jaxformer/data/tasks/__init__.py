"""Built-in tasks, one file a family: data that is made, not read."""

import dataclasses

from jaxformer.config import RunConfig, TaskConfig
from jaxformer.data.tasks.addition import ADDITION
from jaxformer.data.tasks.base import Task
from jaxformer.data.tasks.chomsky import CHOMSKY
from jaxformer.data.tasks.copying import COPYING
from jaxformer.data.tasks.dyck import DYCK
from jaxformer.data.tasks.majority import MAJORITY
from jaxformer.data.tasks.parity import PARITY
from jaxformer.data.tasks.recall import RECALL
from jaxformer.data.tasks.sampler import Sampler
from jaxformer.data.tasks.scan import SCAN, Scan, scan_sampler
from jaxformer.data.tasks.sorting import SORTING
from jaxformer.errors import UserError

TASKS: dict[str, Task] = {
    **COPYING,
    **ADDITION,
    **PARITY,
    **MAJORITY,
    **SORTING,
    **DYCK,
    **CHOMSKY,
    **RECALL,
    **SCAN,
}


def make_task(cfg: TaskConfig) -> Task:
    """The task of a config with its options; UserError for those it does not read."""
    if cfg.name not in TASKS:
        known = ", ".join(TASKS)
        raise UserError("data.task.name", f"is {cfg.name!r}", f"choose from {known}")
    task = TASKS[cfg.name]
    options = {
        "symbols": cfg.symbols,
        "modulus": cfg.modulus,
        "brackets": cfg.brackets,
        "hints": cfg.hints,
        "ignore": cfg.ignore,
        "split": cfg.split,
    }
    given = {name: value for name, value in options.items() if value}
    for name in given:
        if name not in task.about.reads:
            what = f"is set to {given[name]} but {cfg.name} does not read it"
            raise UserError(f"data.task.{name}", what, "remove it")
    return dataclasses.replace(task, **given)


def make_sampler(cfg: RunConfig) -> Sampler:
    """What makes the rows of a run. Raises UserError where the task does not have its lengths."""
    options, task = cfg.data.task, make_task(cfg.data.task)
    about, source = task.about, cfg.model.position.source
    coupled = source.kind == "coupled"
    width, add_bos = cfg.data.length, cfg.data.add_bos
    if isinstance(task, Scan):
        if not cfg.data.path:
            raise UserError("data.path", "is empty", "name the folder with the files of scan")
        sampler = scan_sampler(cfg.data.path, options.split, width, add_bos)
        _check_scan(cfg, sampler)
    else:
        bounds = options.min_length, options.max_length
        sampler = Sampler(task, *bounds, options.num_examples, width, add_bos, coupled)
    if options.min_length < about.smallest:
        what = f"is {options.min_length}, but {options.name} starts at {about.smallest}"
        raise UserError("data.task.min_length", what, "raise it")
    if about.largest and options.max_length > about.largest:
        what = f"is {options.max_length}, but {options.name} ends at {about.largest}"
        raise UserError("data.task.max_length", what, "lower it, or raise the task's option")
    need = sampler.most_inputs(options.max_length)
    if cfg.data.length < need:
        what = f"{cfg.data.length} is too short for data.task.max_length = {options.max_length}"
        more = f"rows of {options.name} have up to {need} inputs"
        raise UserError("data.length", f"{what}: {more}", f"raise it to {need}")
    if coupled:
        _check_coupled(cfg, task)
    return sampler


def _check_scan(cfg: RunConfig, sampler: Sampler) -> None:
    options = cfg.data.task
    asked = options.min_length, options.max_length
    for name, value, found in zip(
        ("min_length", "max_length"), asked, (sampler.min_length, sampler.max_length), strict=True
    ):
        if value != found:
            what = f"is {value}, but split {options.split} has {found} in training"
            raise UserError(f"data.task.{name}", what, f"set it to {found}")
    if options.num_examples:
        what = f"is {options.num_examples}, but scan has its own"
        raise UserError("data.task.num_examples", what, "remove it")


def _check_coupled(cfg: RunConfig, task: Task) -> None:
    longest, source = cfg.data.task.max_length, cfg.model.position.source
    need, ids = task.most_coupled(longest) + 1, source.num_ids(0, cfg.model.max_length)
    if need == 1:
        what = f"is coupled, but {cfg.data.task.name} couples no tokens"
        raise UserError("model.position.source.kind", what, "choose another, or addition_padded")
    if ids < need:
        what = f"is {ids}, but rows of length {longest} have {need} ids"
        raise UserError("model.position.source.range", what, "raise it")
