"""A sweep: its cells trained (the seeds of an arm together), evaluated and noted on the disk.

A cell is a run directory of train.py under OUT/cells, which resumes and is evaluated like any
other, and a record, cell.json, once it has come to an end. results.csv, which is written after
every cell, and the report at the end follow from the records alone.
"""

import contextlib
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
from jaxformer.experiments.groups import Group, check_seeds, is_trained, make_groups, why_alone
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
from jaxformer.experiments.seeds import train_seeds
from jaxformer.experiments.selection import best_beyond, candidates
from jaxformer.experiments.together import ByLength, evaluate_together
from jaxformer.progress import show_progress
from jaxformer.run import load
from jaxformer.training.loop import train
from jaxformer.training.signals import stop_on_signal


def is_finished(out: Path, cell: Cell) -> bool:
    """Whether the cell has been trained and evaluated, and need not be again."""
    record = read_record(out, cell)
    return record is not None and not record.failed


def run_sweep(
    jobs: Sequence[Job],
    out: Path,
    select: str = "last",
    reference: Reference | None = None,
    seeds_per_program: int = 0,
) -> Report:
    """Runs what is not finished and returns the report, which is written whatever happens.

    `select` names the checkpoint of each cell that is evaluated, as it was given to `plan`;
    `seeds_per_program` seeds of an arm are trained together (0: as many as there is memory for).
    Raises Preempted after a signal, all being saved, and at the end TrainingFailed where a cell
    failed: the next start tries it again.
    """
    check_seeds(jobs, seeds_per_program)
    plan = make_plan(jobs, select)
    write_plan(out, plan)
    waiting = [job for job in jobs if not is_finished(out, job.cell)]
    if len(waiting) < len(jobs):
        _say(f"{len(jobs) - len(waiting)} of {len(jobs)} cells are finished already")
    reasons = dict.fromkeys(why_alone(job.config) for job in waiting)
    for reason in reasons if seeds_per_program != 1 else ():
        if reason:
            _say(f"seeds are trained one after another: {reason}")
    write_rows(out, plan)
    try:
        groups = make_groups(jobs, waiting, out, seeds_per_program)
        failed = _run_all(groups, waiting, out, plan, select)
    finally:
        report = write_report(out, plan, reference)
    if failed:
        raise TrainingFailed(f"{len(failed)} of {len(jobs)} cells: {'; '.join(failed)}")
    return report


def _run_all(
    groups: Sequence[Group], waiting: Sequence[Job], out: Path, plan: Plan, select: str
) -> list[str]:
    """Runs groups of cells one after another; the titles of those that failed."""
    failed, began, done = [], time.monotonic(), 0
    with stop_on_signal() as stop:
        for group in groups:
            members = [job for job in group.jobs if job in waiting]
            place = f"{done + 1}/{len(waiting)}"
            _say(f"[{place}] {group.title} in cells/{members[0].cell.name}")
            failures = _train(group, out)
            known = _measure(group, out, failures, select)
            for job in members:
                if reason := failures.get(job.cell.name):
                    _say(f"failed: {reason}")
                    failed.append(job.cell.title)
                    record = Record(0, [], reason)
                else:
                    record = _evaluate(job, out, select, known)
                write_record(out, job.cell, record)
                write_rows(out, plan)
                done += 1
                if stop.name and done < len(waiting):
                    raise Preempted(job.config.train.num_steps, stop.name)
            jax.clear_caches()  # of programs that were the group's own: 30 MB or more
            if done < len(waiting):
                left = (time.monotonic() - began) / done * (len(waiting) - done)
                _say(f"about {duration(left)} to go")
    for group in groups:  # those of other axes in the same OUT stay
        shutil.rmtree(group.folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        (out / "groups").rmdir()
    return failed


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


def _measure(
    group: Group, out: Path, failures: Mapping[str, str], select: str
) -> dict[tuple[str, int], ByLength]:
    """What a group's seeds reach at each length, by cell and step of the checkpoints to evaluate.

    {} where each is evaluated by itself.
    """
    jobs = [job for job in group.jobs if job.cell.name not in failures]
    if len(jobs) < 2:
        return {}
    folders = [folder_of(out, job.cell) for job in jobs]
    data = [open_data(job.config, folder) for job, folder in zip(jobs, folders, strict=True)]
    known: dict[tuple[str, int], ByLength] = {}
    turns = zip(*(candidates(select, folder) for folder in folders), strict=False)
    for steps in turns:  # a checkpoint of each: some may have more, which are evaluated alone
        runs = [load(folder, step) for folder, step in zip(folders, steps, strict=True)]
        for job, run, found in zip(
            jobs, runs, evaluate_together(runs, data, jobs[0].suite), strict=False
        ):
            known[job.cell.name, run.step] = found
    return known


def _evaluate(
    job: Job, out: Path, select: str, known: Mapping[tuple[str, int], ByLength]
) -> Record:
    """Evaluates a cell that has been trained; its group may have measured some of it."""
    folder = folder_of(out, job.cell)
    data, steps, found = open_data(job.config, folder), candidates(select, folder), {}
    for step in steps:
        run = load(folder, step)
        found[run.step] = evaluate(
            run,
            data,
            job.suite,
            folder / "eval" / (f"step_{step}" if len(steps) > 1 else ""),
            metrics_path=folder / "metrics.jsonl",
            by_length=known.get((job.cell.name, run.step)),
        ).results
    best = best_beyond(found, job.cell.trained_up_to) if select == "ood" else next(iter(found))
    return Record(best, found[best], selected_by=select)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
