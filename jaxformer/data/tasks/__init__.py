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
}
OPTIONS = ("symbols", "modulus", "brackets", "hints", "ignore")


def make_task(cfg: TaskConfig) -> Task:
    """The task of a config with its options; UserError for those it does not read."""
    if cfg.name not in TASKS:
        known = ", ".join(TASKS)
        raise UserError("data.task.name", f"is {cfg.name!r}", f"choose from {known}")
    task = TASKS[cfg.name]
    given = {name: getattr(cfg, name) for name in OPTIONS if getattr(cfg, name)}
    for name in given:
        if name not in task.about.options:
            what = f"is set to {given[name]} but {cfg.name} does not read it"
            raise UserError(f"data.task.{name}", what, "remove it")
    return dataclasses.replace(task, **given)


def make_sampler(cfg: RunConfig) -> Sampler:
    """What makes the rows of a run. Raises UserError where the task does not have its lengths."""
    options, task = cfg.data.task, make_task(cfg.data.task)
    about = task.about
    coupled = False
    sampler = Sampler(
        task,
        options.min_length,
        options.max_length,
        options.num_examples,
        cfg.data.length,
        cfg.data.add_bos,
        coupled,
    )
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
    return sampler
