"""A sweep: its cells trained (the seeds of an arm together), evaluated and noted on the disk.

A cell is a run directory of train.py under OUT/cells, which resumes and is evaluated like any
other, and a record, cell.json, once it has come to an end. results.csv and table.md follow from the
records alone.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxformer.data import open_data
from jaxformer.errors import Preempted, TrainingFailed
from jaxformer.evaluation.run import evaluate
from jaxformer.experiments.cells import Cell, Job
from jaxformer.experiments.groups import Group, check_seeds, make_groups
from jaxformer.experiments.results import (
    Record,
    folder_of,
    read_record,
    write_cells,
    write_record,
    write_report,
)
from jaxformer.experiments.seeds import train_seeds
from jaxformer.progress import show_progress
from jaxformer.run import load
from jaxformer.training.loop import train
from jaxformer.training.signals import stop_on_signal


def is_finished(out: Path, cell: Cell) -> bool:
    """Whether the cell has been trained and evaluated, and need not be again."""
    record = read_record(out, cell)
    return record is not None and not record.failed


def run_sweep(jobs: Sequence[Job], out: Path, seeds_per_program: int = 0) -> str:
    """Runs what is not finished and returns the table of means.

    `seeds_per_program` seeds of an arm are trained together (0: as many as there is memory for).
    Raises Preempted after a signal, all being saved, and at the end TrainingFailed where a cell
    failed: the next start tries it again.
    """
    check_seeds(jobs, seeds_per_program)
    cells = [job.cell for job in jobs]
    write_cells(out, cells)
    waiting = [job for job in jobs if not is_finished(out, job.cell)]
    if len(waiting) < len(jobs):
        _say(f"{len(jobs) - len(waiting)} of {len(jobs)} cells are finished already")
    shown = write_report(out, cells)
    failed, began, done = [], time.monotonic(), 0
    with stop_on_signal() as stop:
        for group in make_groups(waiting, out, seeds_per_program):
            place = f"{done + 1}/{len(waiting)}"
            _say(f"[{place}] {group.title} in cells/{group.jobs[0].cell.name}")
            failures = _train(group, out)
            for job in group.jobs:
                reason = failures.get(job.cell.name, "")
                if reason:
                    _say(f"failed: {reason}")
                    failed.append(job.cell.title)
                record = Record(0, [], reason) if reason else _evaluate(job, out)
                write_record(out, job.cell, record)
                shown = write_report(out, cells)
                done += 1
                if stop.name and done < len(waiting):
                    raise Preempted(job.config.train.num_steps, stop.name)
            jax.clear_caches()  # of programs that were the group's own: 30 MB or more
            if done < len(waiting):
                left = (time.monotonic() - began) / done * (len(waiting) - done)
                _say(f"about {_duration(left)} to go")
    shutil.rmtree(out / "groups", ignore_errors=True)
    if failed:
        raise TrainingFailed(f"{len(failed)} of {len(jobs)} cells: {'; '.join(failed)}")
    return shown


def _train(group: Group, out: Path) -> dict[str, str]:
    """Trains a group to its end, from its newest checkpoint; returns why cells failed, by name."""
    cfg = group.jobs[0].config
    with show_progress(cfg.train.num_steps, cfg.train.log_every) as progress:
        if len(group.jobs) > 1:
            group.note()
            return train_seeds(group.jobs, out, group.folder, progress)
        name = group.jobs[0].cell.name
        folder = folder_of(out, group.jobs[0].cell)
        try:
            train(cfg, open_data(cfg, folder), folder, progress=progress)
        except TrainingFailed as error:
            return {name: str(error)}
        return {}


def _evaluate(job: Job, out: Path) -> Record:
    """Evaluates a cell that has been trained."""
    folder = folder_of(out, job.cell)
    run, data = load(folder), open_data(job.config, folder)
    metrics = folder / "metrics.jsonl"
    found = evaluate(run, data, job.suite, folder / "eval", metrics_path=metrics)
    return Record(run.step, found.results)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
