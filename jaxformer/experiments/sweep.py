"""A sweep: its cells one after another, each trained, evaluated and noted on the disk.

A cell is a run directory of train.py under OUT/cells, which resumes and is evaluated like any
other, and a record, cell.json, once it has come to an end. results.csv, which is written after
every cell, and the report at the end follow from the records alone.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxformer.data import open_data
from jaxformer.errors import Preempted, TrainingFailed
from jaxformer.evaluation.run import evaluate
from jaxformer.experiments.cells import Cell, Job
from jaxformer.experiments.publish import Report, write_report
from jaxformer.experiments.reference import Reference
from jaxformer.experiments.results import (
    Plan,
    Record,
    folder_of,
    make_plan,
    read_record,
    write_plan,
    write_record,
    write_rows,
)
from jaxformer.experiments.selection import best_beyond, candidates
from jaxformer.progress import show_progress
from jaxformer.run import load
from jaxformer.training.loop import train
from jaxformer.training.signals import stop_on_signal


def is_finished(out: Path, cell: Cell) -> bool:
    """Whether the cell has been trained and evaluated, and need not be again."""
    record = read_record(out, cell)
    return record is not None and not record.failed


def run_sweep(
    jobs: Sequence[Job], out: Path, select: str = "last", reference: Reference | None = None
) -> Report:
    """Runs what is not finished and returns the report, which is written whatever happens.

    `select` names the checkpoint of each cell that is evaluated, as it was given to `plan`. Raises
    Preempted after a signal, all being saved, and at the end TrainingFailed where a cell failed:
    the next start tries it again.
    """
    plan = make_plan(jobs, select)
    write_plan(out, plan)
    waiting = [job for job in jobs if not is_finished(out, job.cell)]
    if len(waiting) < len(jobs):
        _say(f"{len(jobs) - len(waiting)} of {len(jobs)} cells are finished already")
    write_rows(out, plan)
    try:
        failed = _run_all(waiting, out, plan, select)
    finally:
        report = write_report(out, plan, reference)
    if failed:
        raise TrainingFailed(f"{len(failed)} of {len(jobs)} cells: {'; '.join(failed)}")
    return report


def _run_all(waiting: Sequence[Job], out: Path, plan: Plan, select: str) -> list[str]:
    """Runs cells one after another; the titles of those that failed."""
    failed, began = [], time.monotonic()
    with stop_on_signal() as stop:
        for number, job in enumerate(waiting, 1):
            cell, steps = job.cell, job.config.train.num_steps
            _say(f"[{number}/{len(waiting)}] {cell.title} in cells/{cell.name}")
            try:
                record = _run(job, out, select)
            except TrainingFailed as error:
                _say(f"failed: {error}")
                failed.append(cell.title)
                record = Record(0, [], str(error))
            write_record(out, cell, record)
            write_rows(out, plan)
            jax.clear_caches()  # of programs that were the cell's own: 30 MB or more
            if number < len(waiting):
                left = (time.monotonic() - began) / number * (len(waiting) - number)
                _say(f"about {_duration(left)} to go")
            if stop.name and number < len(waiting):
                raise Preempted(steps, stop.name)
    return failed


def _run(job: Job, out: Path, select: str) -> Record:
    """Trains the cell to its end, from its newest checkpoint if there is one, and evaluates it."""
    cfg, folder = job.config, folder_of(out, job.cell)
    data = open_data(cfg, folder)
    with show_progress(cfg.train.num_steps, cfg.train.log_every) as progress:
        train(cfg, data, folder, progress=progress)
    metrics, found = folder / "metrics.jsonl", {}
    steps = candidates(select, folder)
    for step in steps:
        run = load(folder, step)
        where = folder / "eval" / (f"step_{step}" if len(steps) > 1 else "")
        found[run.step] = evaluate(run, data, job.suite, where, metrics_path=metrics).results
    best = best_beyond(found, job.cell.trained_up_to) if select == "ood" else next(iter(found))
    return Record(best, found[best], selected_by=select)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
