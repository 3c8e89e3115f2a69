"""Tables of the headline over whole buckets: by arm, by pair of arms, and over tasks."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxformer.evaluation.statistics import (
    interquartile_mean,
    longest,
    mean_reciprocal_rank,
    mean_std,
)
from jaxformer.experiments.formats import NONE, Line, Table, bounds, number, title_of
from jaxformer.experiments.rows import ID, OOD
from jaxformer.experiments.study import (
    IN_PERCENT,
    Arm,
    Point,
    Run,
    Task,
    compare_arms,
    interval,
    mean,
    run_means,
)

RATES = {"L50": 0.5, "L90": 0.9, "L99": 0.99}


def summary(
    task: Task, sizes: dict[str, int], which: str, runs: Callable[[Arm], Sequence[Run]]
) -> Table:
    """One line an arm: both buckets, the spread over seeds, and how far it reaches."""
    metric, lines, incomplete = task.headline, [], []
    for arm in task.arms:
        line = {"arm": arm.name, "seeds": str(len(runs(arm)))}
        if task.is_share and sizes and task.of(ID):
            line["learned"] = f"{len(learned(arm))}/{len(arm.runs)}"
            line["flag"] = "id_failed" if arm.failed else ""
        for name, bucket in (("in distribution", ID), ("beyond training", OOD)):
            if not (lengths := task.of(bucket)):
                continue
            grid = arm.grid(metric, lengths, runs(arm))
            line[name] = number(metric, mean(grid)) if grid else NONE
            if bucket == OOD:
                line |= _spread(metric, grid)
                if runs(arm) and not grid:
                    incomplete.append(arm.name)
        if task.is_share:
            line |= _reach(task, arm, runs(arm))
        if arm.name in sizes:
            line["parameters"] = f"{sizes[arm.name]:,}"
        lines.append(line)
    note = "Means over lengths, each length alike. "
    if task.is_share:
        note += (
            "L50, L90, L99: longest tested length such that it and all shorter ones reach 50, 90, "
            "99 %; median of the seeds (least to most). "
        )
    if incomplete:
        note += f"{NONE}: not tested at every length: {', '.join(incomplete)}. "
    title = f"{title_of(metric)}{' (%)' if metric in IN_PERCENT else ''}, {which}"
    return Table(title[0].upper() + title[1:], _flags_needed(lines), note.strip())


def pairs(task: Task) -> list[Table]:
    """All pairs of arms beyond training, by paired seeds."""
    if not task.of(OOD):
        return []
    lines, metric = [], task.headline
    scale = 100 if metric in IN_PERCENT else 1
    for index, a in enumerate(task.arms):
        for b in task.arms[index + 1 :]:
            if (found := compare_arms(task, a, b, OOD)) is None:
                continue
            line = {"arm": a.name, "minus": b.name, "paired seeds": str(found.pairs)}
            digits = 1 if scale == 100 else 3
            line["difference"] = f"{scale * found.difference:+.{digits}f}"
            ends = [f"{scale * bound:+.{digits}f}" for bound in (found.low, found.high)]
            line["95 % interval"] = NONE if math.isnan(found.low) else f"[{', '.join(ends)}]"
            line["p"] = NONE if math.isnan(found.p) else f"{found.p:.3g}"
            lines.append(line)
    note = (
        "Over lengths and seeds that both have. p: exact sign flips of paired seeds, two-sided, "
        "not corrected for the number of pairs; with n seeds it is never below 2^(1 - n), .0625 "
        "for five."
    )
    title = f"Pairs of arms beyond training: {title_of(metric)}"
    return [Table(title, lines, note, main=len(lines) <= 3)] if lines else []


def over_tasks(tasks: Sequence[Task]) -> list[Table]:
    """Arms side by side over tasks: means beyond training and the mean reciprocal rank."""
    tasks = [task for task in tasks if task.of(OOD)]
    if len(tasks) < 2:
        return []
    names = list(dict.fromkeys(arm.name for task in tasks for arm in task.arms))
    scores, lines = [], []
    for task in tasks:
        arms = {arm.name: arm for arm in task.arms}
        means = {n: _run_means(task, arm, OOD) for n, arm in arms.items()}
        shown = [float(np.mean(list(means.get(n, {}).values()) or [math.nan])) for n in names]
        values = [number(task.headline, value) for value in shown]
        lines.append({"task": task.name} | dict(zip(names, values, strict=True)))
        shared = set.intersection(*[set(means.get(n, {})) for n in names])
        sign = 1 if task.is_share else -1
        for run in sorted(shared, key=str):
            scores.append([sign * means[n][run] for n in names])
    note = f"Mean reciprocal rank over {len(scores)} pairs of task and seed; ties share their ranks"
    if scores:
        ranked = [f"{value:.3f}" for value in mean_reciprocal_rank(scores)]
        lines.append({"task": "mean reciprocal rank"} | dict(zip(names, ranked, strict=True)))
    return [Table("Beyond training, over tasks", lines, f"{note}." if scores else "")]


def learned(arm: Arm) -> tuple[Run, ...]:
    return tuple(run for run, is_learned in arm.learned.items() if is_learned)


def _run_means(task: Task, arm: Arm, bucket: str) -> dict[Run, float]:
    """Run → mean of the headline over a bucket; only runs that have all of its lengths."""
    lengths = task.of(bucket)
    grids = {run: arm.grid(task.headline, lengths, [run]) for run in arm.runs} if lengths else {}
    return {run: run_means(grid)[0] for run, grid in grids.items() if grid}


def _flags_needed(lines: list[Line]) -> list[Line]:
    if any(line.get("flag") for line in lines):
        return lines
    return [{k: v for k, v in line.items() if k != "flag"} for line in lines]


def _spread(metric: str, grid: list[list[Point]]) -> Line:
    names = ("95 % interval", "std", "min", "max", "IQM")
    if not grid:
        return dict.fromkeys(names, NONE)
    values = run_means(grid)
    low, high = interval(grid)
    numbers = (mean_std(values).std, min(values), max(values), interquartile_mean(values))
    shown = [bounds(metric, low, high), *(number(metric, value) for value in numbers)]
    return dict(zip(names, shown, strict=True))


def _reach(task: Task, arm: Arm, runs: Sequence[Run]) -> Line:
    found = {}
    for name, rate in RATES.items():
        reached = []
        for run in runs:
            points = arm.by_length.get(task.headline, {}).get(run, {})
            reach = longest({n: point.value for n, point in points.items()}, rate)
            reached.append(-1 if reach is None else reach)
        if not reached:
            found[name] = NONE
            continue
        middle = sorted(reached)[(len(reached) - 1) // 2]  # a length that was tested
        low, high = min(reached), max(reached)
        words = [NONE if n < 0 else str(n) for n in (middle, low, high)]
        found[name] = words[0] if low == high else f"{words[0]} ({words[1]} to {words[2]})"
    return found
