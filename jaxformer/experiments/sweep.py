"""A sweep: its cells trained (the seeds of an arm together), evaluated and noted on the disk.

A cell is a run directory of train.py under OUT/cells, which resumes and is evaluated like any
other, and a record, cell.json, once it has come to an end. results.csv and table.md follow from the
records alone.
"""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from jaxformer.data import open_data
from jaxformer.errors import Preempted, TrainingFailed
from jaxformer.evaluation.run import evaluate
from jaxformer.experiments.cells import Cell, Job
from jaxformer.experiments.estimate import duration
from jaxformer.experiments.groups import (
    Group,
    check_seeds,
    is_trained,
    make_groups,
    why_alone,
)
from jaxformer.experiments.results import (
    Record,
    folder_of,
    read_record,
    write_cells,
    write_record,
    write_report,
)
from jaxformer.experiments.seeds import train_seeds
from jaxformer.experiments.together import ByLength, evaluate_together
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
    reasons = dict.fromkeys(why_alone(job.config) for job in waiting)
    for reason in reasons if seeds_per_program != 1 else ():
        if reason:
            _say(f"seeds are trained one after another: {reason}")
    failed, began, done = [], time.monotonic(), 0
    with stop_on_signal() as stop:
        for group in make_groups(jobs, waiting, out, seeds_per_program):
            members = [job for job in group.jobs if job in waiting]
            place = f"{done + 1}/{len(waiting)}"
            _say(f"[{place}] {group.title} in cells/{members[0].cell.name}")
            failures = _train(group, out)
            by_length = _measure(group, out, failures)
            for job in members:
                name = job.cell.name
                if name in failures:
                    _say(f"failed: {failures[name]}")
                    failed.append(job.cell.title)
                    record = Record(0, [], failures[name])
                else:
                    record = _evaluate(job, out, by_length.get(name))
                write_record(out, job.cell, record)
                shown = write_report(out, cells)
                done += 1
                if stop.name and done < len(waiting):
                    raise Preempted(job.config.train.num_steps, stop.name)
            jax.clear_caches()  # of programs that were the group's own: 30 MB or more
            if done < len(waiting):
                left = (time.monotonic() - began) / done * (len(waiting) - done)
                _say(f"about {duration(left)} to go")
    shutil.rmtree(out / "groups", ignore_errors=True)
    if failed:
        raise TrainingFailed(f"{len(failed)} of {len(jobs)} cells: {'; '.join(failed)}")
    return shown


def _train(group: Group, out: Path) -> dict[str, str]:
    """Trains a group to its end, from its newest checkpoint; returns why cells failed, by name."""
    cfg, cell = group.jobs[0].config, group.jobs[0].cell
    with show_progress(cfg.train.num_steps, cfg.train.log_every) as progress:
        if len(group.jobs) > 1:
            if is_trained(group, out):
                _say(f"all {len(group.jobs)} have their {cfg.train.num_steps} steps")
                return {}
            group.note()
            return train_seeds(group.jobs, out, group.folder, progress)
        folder = folder_of(out, cell)
        try:
            train(cfg, open_data(cfg, folder), folder, progress=progress)
        except TrainingFailed as error:
            return {cell.name: str(error)}
        return {}


def _measure(group: Group, out: Path, failures: Mapping[str, str]) -> dict[str, ByLength]:
    """What a group's seeds reach at each length, by cell; {} where each is evaluated by itself."""
    jobs = [job for job in group.jobs if job.cell.name not in failures]
    if len(jobs) < 2:
        return {}
    folders = [folder_of(out, job.cell) for job in jobs]
    data = open_data(jobs[0].config, folders[0])
    found = evaluate_together([load(folder) for folder in folders], data, jobs[0].suite)
    return {job.cell.name: by_length for job, by_length in zip(jobs, found, strict=False)}


def _evaluate(job: Job, out: Path, by_length: ByLength | None) -> Record:
    """Evaluates a cell that has been trained; `by_length` is what its group has measured."""
    folder = folder_of(out, job.cell)
    found = evaluate(
        load(folder),
        open_data(job.config, folder),
        job.suite,
        folder / "eval",
        metrics_path=folder / "metrics.jsonl",
        by_length=by_length,
    )
    return Record(job.config.train.num_steps, found.results)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
