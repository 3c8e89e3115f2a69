"""Which cells are trained together: the seeds of an arm, as many as there is memory for."""

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxformer.analysis.accounts import module_table
from jaxformer.checkpoint import Checkpoints
from jaxformer.config import RunConfig
from jaxformer.data.cache import fingerprint
from jaxformer.errors import UserError
from jaxformer.evaluation import report
from jaxformer.experiments.cells import Job
from jaxformer.experiments.results import folder_of

COPIES = 6  # of the parameters: they, gradients, updates, both moments, perhaps an average
KEPT = 3  # times what accounts.py counts of activations is what XLA may hold
SHARE = 0.5  # of the free memory


@dataclasses.dataclass(frozen=True)
class Group:
    """Cells of one program, and the folder of the checkpoints that they have in common."""

    jobs: tuple[Job, ...]
    folder: Path

    @property
    def title(self) -> str:
        first = self.jobs[0].cell
        arm = " ".join(f"{name}={value}" for name, value in first.arm.items())
        seeds = ", ".join(str(job.cell.seed) for job in self.jobs)
        return f"{arm} seeds {seeds}".lstrip() if len(self.jobs) > 1 else first.title

    def note(self) -> None:
        """Writes down which cells these are: a sweep that goes on makes the same group again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cells = [job.cell.name for job in self.jobs]
        report.write_json(self.folder / "group.json", {"cells": cells})


def check_seeds(jobs: Sequence[Job], seeds_per_program: int) -> None:
    """Raises UserError where several seeds a program are asked for and cannot be."""
    for job in jobs:
        if seeds_per_program > 1 and (reason := why_alone(job.config)):
            what = f"is {seeds_per_program}, but {reason}"
            raise UserError("--seeds_per_program", what, "leave it out, or give 1")


def why_alone(cfg: RunConfig) -> str:
    """Why runs of a config have no program in common with other seeds; '' where they have."""
    if cfg.mesh.data > 1 or any(n != 1 for axis, n in cfg.mesh.to_dict().items() if axis != "data"):
        return f"mesh.{cfg.mesh} spreads each run over devices"
    if cfg.data.streaming:
        return "data.streaming reads each run's documents while it trains"
    if cfg.objective.distillation.teacher:
        return "objective.distillation.teacher is another run, which is read by itself"
    if cfg.train.init_from:
        return "train.init_from starts each run with another's parameters"
    return ""


def make_groups(
    jobs: Sequence[Job], waiting: Sequence[Job], out: Path | None, seeds_per_program: int
) -> list[Group]:
    """Shares out what is `waiting` of the jobs, in their order.

    A group that an earlier process began comes back as it was, with what is finished of it. A cell
    that has checkpoints of its own goes on by itself, and those at their end are evaluated together
    only. `seeds_per_program` 0: by memory. Without `out` nothing has begun.
    """
    by_name = {job.cell.name: job for job in jobs}
    groups: dict[str, Group] = {}  # by the cells in them
    for folder in sorted((out / "groups").glob("*")) if out else ():
        names = _noted(folder)
        if names and all(name in by_name for name in names):
            groups |= dict.fromkeys(names, Group(tuple(by_name[n] for n in names), folder))
    arms: dict[tuple[RunConfig, bool], list[Job]] = {}
    for job in waiting:
        name, last = job.cell.name, last_checkpoint(out, job)
        if name in groups:
            continue
        has_begun = last not in (0, job.config.train.num_steps)
        if why_alone(job.config) or seeds_per_program == 1 or has_begun:
            groups[name] = _group((job,), out)
        else:
            arms.setdefault((_without_seeds(job.config), bool(last)), []).append(job)
    for (cfg, _), members in arms.items():
        count = -(-len(members) // (seeds_per_program or seeds_that_fit(cfg)))
        for part in range(count):  # of equal sizes, as far as can be
            some = members[part * len(members) // count : (part + 1) * len(members) // count]
            group = _group(tuple(some), out)
            groups |= dict.fromkeys((job.cell.name for job in some), group)
    return list({id(group): group for group in (groups[j.cell.name] for j in waiting)}.values())


def last_checkpoint(out: Path | None, job: Job) -> int:
    """The newest step in the cell's own folder; 0 where there is none."""
    if out is None:
        return 0
    return Checkpoints(folder_of(out, job.cell), read_only=True).latest_step() or 0


def is_trained(group: Group, out: Path) -> bool:
    """Whether all its cells have a checkpoint of their last step."""
    return all(last_checkpoint(out, job) == job.config.train.num_steps for job in group.jobs)


def seeds_that_fit(cfg: RunConfig) -> int:
    """How many seeds the free memory has room for; at least 1."""
    return max(1, int(SHARE * free_bytes()) // bytes_of_a_seed(cfg))


def bytes_of_a_seed(cfg: RunConfig) -> int:
    """An estimate of what training one run holds: parameters, optimizer and activations."""
    length = cfg.data.target_length or cfg.data.length
    sizes = {"length": length, "source_length": cfg.data.length}
    total = module_table(cfg.model, **sizes, compute_dtype=cfg.compute_dtype)[-1]
    tokens = cfg.train.batch_size // cfg.train.num_microbatches * (length + cfg.data.target_length)
    return 4 * COPIES * total["parameters"] + KEPT * tokens * total["activation_bytes"]


def free_bytes() -> int:
    """Of all devices, or of this machine where they are its CPU."""
    stats = [device.memory_stats() or {} for device in jax.devices()]
    if all("bytes_limit" in each for each in stats):
        return sum(each["bytes_limit"] - each.get("bytes_in_use", 0) for each in stats)
    try:
        told = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:  # no Linux: this leaves out what is only cached
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = re.search(r"MemAvailable:\s*(\d+) kB", told)
    return int(found[1]) * 1024 if found else 0


def _group(jobs: tuple[Job, ...], out: Path | None) -> Group:
    return Group(
        jobs, (out or Path()) / "groups" / fingerprint("group", [job.cell.name for job in jobs])
    )


def _noted(folder: Path) -> list[str]:
    try:
        return json.loads((folder / "group.json").read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # killed before it was written: nothing was trained


def _without_seeds(cfg: RunConfig) -> RunConfig:
    return dataclasses.replace(cfg, seed=0, data=dataclasses.replace(cfg.data, seed=0))
