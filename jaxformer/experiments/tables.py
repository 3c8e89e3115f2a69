"""The tables of a sweep, as rows of text: table.md and index.html show the same ones.

Of the headline, the first of `study.HEADLINES` that was measured, there are means with a 95 %
interval by hierarchical bootstrap, every seed with its own interval, and pairs of arms; of all else
means and deviations. Where runs failed in distribution, tables of all seeds and of those that
learned the task stand one after the other.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxformer.evaluation.coverage import UNTRAINED
from jaxformer.evaluation.statistics import mean_std, wilson
from jaxformer.experiments.formats import (
    Line,
    Table,
    bounds,
    number,
    run_name,
    title_of,
    value_of,
)
from jaxformer.experiments.reference import Reference, compare_tables
from jaxformer.experiments.rows import ID
from jaxformer.experiments.study import (
    IN_PERCENT,
    LEARNED,
    Arm,
    Point,
    Run,
    Task,
    interval,
)
from jaxformer.experiments.summary import learned, pairs, summary

MAX_COLUMNS = 8  # lengths side by side; more go down the page, with arms side by side
Runs = Callable[[Arm], Sequence[Run]]  # which runs of an arm a table is about
FEW = 1000  # examples a length: below, a share is known to no better than 3 per cent


def task_tables(
    task: Task, sizes: dict[str, int], reference: Reference | None = None
) -> list[Table]:
    """All tables of one task; `sizes` are the parameters of each arm by name."""
    if not task.lengths:
        return [_validation(task, main=True)]
    tables = []
    if any(task.buckets.values()):  # otherwise nobody knows what is beyond training
        tables.append(summary(task, sizes, "all seeds", lambda arm: arm.runs))
    two_sorts = any(arm.failed for arm in task.arms) and any(map(learned, task.arms))
    if two_sorts:
        tables.append(summary(task, {}, "seeds that learned the task", learned))
    if reference is not None:
        tables += compare_tables(reference, task)
    title, unit = title_of(task.headline), "%, " if task.headline in IN_PERCENT else ""
    of = f"{title} ({unit}mean and 95 % interval)"
    shown = _by_length(task, task.headline, lambda arm: arm.runs, _with_interval)
    tables.append(Table(f"By length: {of}", shown, _remarks(task)))
    if two_sorts:
        shown = _by_length(task, task.headline, learned, _with_interval)
        tables.append(Table(f"By length, seeds that learned the task: {of}", shown, main=False))
    tables += [_untrained(task, metric) for metric in task.metrics if metric in UNTRAINED]
    tables += pairs(task)
    for metric in task.metrics:
        if metric != task.headline and metric not in UNTRAINED:
            unit = "%, " if metric in IN_PERCENT else ""
            shown = _by_length(task, metric, lambda arm: arm.runs, _with_deviation)
            of = f"By length: {title_of(metric)} ({unit}mean ± deviation)"
            tables.append(Table(of, shown, main=False))
    tables.append(_every_seed(task))
    validation = _validation(task, main=False)
    return [*tables, validation] if validation.lines else tables


def _with_interval(metric: str, points: Sequence[Point]) -> str:
    grid = [[point] for point in points]
    shown, ends = value_of(metric, points), interval(grid)
    return shown if math.isnan(ends.low) else f"{shown} {bounds(metric, *ends)}"


def _with_deviation(metric: str, points: Sequence[Point]) -> str:
    shown = value_of(metric, points)
    std = mean_std([point.value for point in points]).std
    return shown if math.isnan(std) else f"{shown} ± {number(metric, std)}"


def _by_length(
    task: Task,
    metric: str,
    runs: Runs,
    shown: Callable[[str, Sequence[Point]], str],
) -> list[Line]:
    """Arms down and lengths across, or the other way round where lengths are many."""
    arms = [arm for arm in task.arms if metric in arm.by_length]
    grid = {
        arm.name: {
            _length(task, n): shown(metric, points) if points else ""
            for n in task.lengths
            for points in [arm.at(metric, n, runs(arm))]
        }
        for arm in arms
    }
    labels = {arm.name: _label(arm, runs(arm)) for arm in arms}
    counts = {arm.name: str(len(runs(arm))) for arm in arms}
    if len(task.lengths) <= MAX_COLUMNS:
        return [{"arm": labels[n], "seeds": counts[n]} | cells for n, cells in grid.items()]
    return [
        {"length": length, "": "in training" if task.buckets[n] == ID else ""}
        | {labels[name]: cells[length] for name, cells in grid.items()}
        for n in task.lengths
        for length in [_length(task, n)]
    ]


def _label(arm: Arm, runs: Sequence[Run]) -> str:
    return f"{arm.name} (id_failed)" if set(arm.failed) & set(runs) else arm.name


def _length(task: Task, length: int) -> str:
    return f"{length}*" if length in task.exhaustive else str(length)


def _remarks(task: Task) -> str:
    """What to know before reading shares by length."""
    remarks = []
    if inside := task.of(ID):
        of = f"{inside[0]} to {inside[-1]}" if len(inside) > 1 else str(min(inside))
        remarks.append(f"In distribution: {of}.")
    elif task.is_share and task.lengths:
        remarks.append("No length in distribution was tested: whether a run learned is not known.")
    if mixed := [n for n in task.lengths if not task.buckets[n]]:
        listed = ", ".join(map(str, mixed))
        remarks.append(f"In distribution for some arms or unknown, so in neither mean: {listed}.")
    if task.is_share and task.examples:
        least = min(task.examples.values())
        few = f": fewer than {FEW:,}, so a single share is known to no better than"
        width = 98 / math.sqrt(least)
        more = f"{few} ± {width:.1f}" if least < FEW else ""
        remarks.append(f"At least {least:,} examples a length and seed{more}.")
    if task.exhaustive:
        remarks.append("* few prompts exist, or few are likely: training had them too.")
    if any(arm.failed for arm in task.arms):
        remarks.append(
            f"id_failed: below {100 * LEARNED:g} % in distribution; such a run says nothing of "
            "longer inputs."
        )
    return " ".join(remarks)


def _untrained(task: Task, metric: str) -> Table:
    met = [arm for arm in task.arms if _any(arm, metric)]
    shown = _by_length(
        dataclasses.replace(task, arms=tuple(met)), metric, lambda arm: arm.runs, value_of
    )
    note = "Of arms that meet any: there the model is asked about what it was never taught."
    return Table(f"By length: {title_of(metric)} (%)", shown, note)


def _any(arm: Arm, metric: str) -> bool:
    points = [p for of_run in arm.by_length.get(metric, {}).values() for p in of_run.values()]
    return any(point.value for point in points)


def _every_seed(task: Task) -> Table:
    """The headline of each run; Wilson's interval of shares of examples that were drawn."""
    metric = task.headline
    grid: dict[tuple[str, str], Line] = {}
    for arm in task.arms:
        for run in arm.runs:
            cells = {}
            for n in task.lengths:
                points = arm.at(metric, n, [run])
                cells[_length(task, n)] = _seed_cell(metric, points[0]) if points else ""
            flag = " id_failed" if run in arm.failed else ""
            grid[arm.name, f"{run_name(run)}{flag}"] = cells
    lines = [{"arm": arm, "seed": seed} | cells for (arm, seed), cells in grid.items()]
    unit = "%, Wilson's 95 % interval" if task.is_share else "one value a seed"
    return Table(f"Every seed: {title_of(metric)} ({unit})", lines, main=False)


def _seed_cell(metric: str, point: Point) -> str:
    shown = value_of(metric, [point])
    if not point.trials or not math.isfinite(point.value):
        return shown
    ends = wilson(point.value * point.trials, point.trials)
    return f"{shown} {bounds(metric, *ends)}"


def _validation(task: Task, *, main: bool) -> Table:
    """Whole splits: one line an arm, one column a metric."""
    lines = []
    for arm in task.arms:
        cells = {
            title_of(metric) + (" (%)" if metric in IN_PERCENT else ""): _with_deviation(
                metric, [Point(value, 0) for value in values.values()]
            )
            for metric, values in arm.overall.items()
            if metric not in UNTRAINED
        }
        if cells:
            lines.append({"arm": arm.name, "seeds": str(len(arm.runs))} | cells)
    return Table("Validation, in distribution (mean ± deviation)", lines, main=main)
