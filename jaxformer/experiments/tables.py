"""The tables of a sweep, as rows of text: table.md and index.html show the same ones.

Of the headline, the first of `study.HEADLINES` that was measured, there are means with a 95 %
interval by hierarchical bootstrap, every seed with its own interval, and pairs of arms; of all else
means and deviations. Where runs failed in distribution, tables of all seeds and of those that
learned the task stand one after the other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.evaluation.coverage import UNTRAINED
from jaxformer.evaluation.statistics import (
    interquartile_mean,
    longest,
    mean_reciprocal_rank,
    mean_std,
    wilson,
)
from jaxformer.experiments.rows import ID, OOD
from jaxformer.experiments.study import (
    IN_PERCENT,
    LEARNED,
    Arm,
    Point,
    Run,
    Task,
    compare_arms,
    interval,
    mean,
    run_means,
)

Line = dict[str, str]
RATES = {"L50": 0.5, "L90": 0.9, "L99": 0.99}
MAX_COLUMNS = 9  # lengths side by side; more go down the page, with arms side by side
FEW = 1000  # examples a length: below, a share is known to no better than 3 per cent
TITLES = {
    "exact_match": "exact match, end token included",
    "exact_match_no_eos": "exact match without the end token",
    "exact_match_oracle_length": "exact match at the right length",
    "token_accuracy_tf": "token accuracy, targets given (no measure of whole answers)",
    "accuracy": "token accuracy, targets given",
    "agreement": "agreement",
    "loss": "loss in nats a token",
    "nll": "loss in nats a token",
    **{name: f"tokens with {what}" for name, what in UNTRAINED.items()},
}
NONE = "–"


class Table(NamedTuple):
    """A titled table with a remark below; one that is not `main` is folded in index.html."""

    title: str
    lines: list[Line]
    note: str = ""
    main: bool = True


def task_tables(task: Task, sizes: dict[str, int]) -> list[Table]:
    """All tables of one task; `sizes` are the parameters of each arm by name."""
    if not task.lengths:
        return [_validation(task, main=True)]
    tables = [_summary(task, sizes, "all seeds", lambda arm: arm.runs)]
    some_failed = any(arm.failed for arm in task.arms)
    if some_failed:
        tables.append(_summary(task, {}, "seeds that learned the task", _learned))
    title, unit = title_of(task.headline), "%, " if task.headline in IN_PERCENT else ""
    of_runs = [("", lambda arm: arm.runs)]
    of_runs += [(", seeds that learned the task", _learned)] if some_failed else []
    for suffix, runs in of_runs:
        shown = _by_length(task, task.headline, runs, _with_interval)
        of = f"By length{suffix}: {title} ({unit}mean and 95 % interval)"
        tables.append(Table(of, shown, "" if suffix else _remarks(task)))
    tables += [_untrained(task, metric) for metric in task.metrics if metric in UNTRAINED]
    tables += _pairs(task)
    for metric in task.metrics:
        if metric != task.headline and metric not in UNTRAINED:
            unit = "%, " if metric in IN_PERCENT else ""
            shown = _by_length(task, metric, lambda arm: arm.runs, _with_deviation)
            of = f"By length: {title_of(metric)} ({unit}mean ± deviation)"
            tables.append(Table(of, shown, main=False))
    tables.append(_every_seed(task))
    validation = _validation(task, main=False)
    return [*tables, validation] if validation.lines else tables


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
        values = [_number(task.headline, value) for value in shown]
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


def title_of(metric: str) -> str:
    return TITLES.get(metric, metric.replace("_", " "))


def run_name(run: Run) -> str:
    """Model and data seed, once where they are equal."""
    return str(run[0]) if run[0] == run[1] else f"{run[0]}, data {run[1]}"


def show(metric: str, value: float) -> str:
    """Per cent with one decimal, or three decimals."""
    return _number(metric, value)


def _learned(arm: Arm) -> tuple[Run, ...]:
    return tuple(run for run, learned in arm.learned.items() if learned)


def _number(metric: str, value: float) -> str:
    if not math.isfinite(value):
        return NONE if math.isnan(value) else str(value)
    if metric in IN_PERCENT:
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def _range(metric: str, low: float, high: float) -> str:
    if math.isnan(low):
        return NONE
    return f"[{_number(metric, low)}, {_number(metric, high)}]"


def _with_interval(metric: str, points: Sequence[Point]) -> str:
    grid = [[point] for point in points]
    shown, bounds = _value(metric, points), interval(grid)
    return shown if math.isnan(bounds.low) else f"{shown} {_range(metric, *bounds)}"


def _with_deviation(metric: str, points: Sequence[Point]) -> str:
    shown = _value(metric, points)
    std = mean_std([point.value for point in points]).std
    return shown if math.isnan(std) else f"{shown} ± {_number(metric, std)}"


def _value(metric: str, points: Sequence[Point]) -> str:
    value = mean([points])
    return "nan" if math.isnan(value) else _number(metric, value)


def _by_length(
    task: Task,
    metric: str,
    runs: Callable[[Arm], Sequence[Run]],
    shown: Callable[[str, Sequence[Point]], str],
) -> list[Line]:
    """Arms down and lengths across, or the other way round where lengths are many."""
    grid = {
        arm.name: {
            _length(task, n): shown(metric, points)
            if (points := arm.at(metric, n, runs(arm)))
            else ""
            for n in task.lengths
        }
        for arm in task.arms
        if metric in arm.by_length
    }
    counts = {arm.name: str(len(runs(arm))) for arm in task.arms}
    if len(task.lengths) <= MAX_COLUMNS:
        return [{"arm": name, "seeds": counts[name]} | cells for name, cells in grid.items()]
    return [
        {"length": length, "": "in training" if task.buckets[n] == ID else ""}
        | {name: cells[length] for name, cells in grid.items()}
        for n in task.lengths
        for length in [_length(task, n)]
    ]


def _length(task: Task, length: int) -> str:
    return f"{length}*" if length in task.exhaustive else str(length)


def _remarks(task: Task) -> str:
    """What to know before reading shares by length."""
    remarks = []
    if inside := task.of(ID):
        of = f"{inside[0]} to {inside[-1]}" if len(inside) > 1 else f"{inside[0]}"
        remarks.append(f"In distribution: {of}.")
    if mixed := [n for n in task.lengths if not task.buckets[n]]:
        listed = ", ".join(map(str, mixed))
        remarks.append(f"In distribution for some arms or unknown, so in neither mean: {listed}.")
    counted = {n: c for n, c in task.examples.items() if n not in task.exhaustive}
    if task.is_share and counted:
        least = min(counted.values())
        few = f": fewer than {FEW:,}, so a single share is known to no better than"
        width = 98 / math.sqrt(least)
        more = f"{few} ± {width:.1f}" if least < FEW else ""
        remarks.append(f"At least {least:,} examples a length and seed{more}.")
    if task.exhaustive:
        remarks.append("* every example that exists.")
    if any(arm.failed for arm in task.arms):
        remarks.append(
            f"id_failed: below {100 * LEARNED:g} % in distribution; such a run says nothing of "
            "longer inputs."
        )
    return " ".join(remarks)


def _run_means(task: Task, arm: Arm, bucket: str) -> dict[Run, float]:
    """Run → mean of the headline over a bucket; only runs that have all of its lengths."""
    lengths = task.of(bucket)
    grids = {run: arm.grid(task.headline, lengths, [run]) for run in arm.runs} if lengths else {}
    return {run: run_means(grid)[0] for run, grid in grids.items() if grid}


def _summary(
    task: Task, sizes: dict[str, int], which: str, runs: Callable[[Arm], Sequence[Run]]
) -> Table:
    """One line an arm: both buckets, the spread over seeds, and how far it reaches."""
    metric, lines, incomplete = task.headline, [], []
    for arm in task.arms:
        line = {"arm": arm.name, "seeds": str(len(runs(arm)))}
        if task.is_share and sizes and task.of(ID):
            line["learned"] = f"{len(_learned(arm))}/{len(arm.runs)}"
            line["flag"] = "id_failed" if arm.failed else ""
        for name, bucket in (("in distribution", ID), ("beyond training", OOD)):
            if not (lengths := task.of(bucket)):
                continue
            grid = arm.grid(metric, lengths, runs(arm))
            line[name] = _number(metric, mean(grid)) if grid else NONE
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
    shown = [_range(metric, low, high), *(_number(metric, value) for value in numbers)]
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


def _untrained(task: Task, metric: str) -> Table:
    shown = _by_length(task, metric, lambda arm: arm.runs, _value)
    note = "Where this is not 0, the model is asked about what it was never taught."
    return Table(f"By length: {title_of(metric)} (%)", shown, note)


def _pairs(task: Task) -> list[Table]:
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
            bounds = [f"{scale * bound:+.{digits}f}" for bound in (found.low, found.high)]
            line["95 % interval"] = NONE if math.isnan(found.low) else f"[{', '.join(bounds)}]"
            line["p"] = NONE if math.isnan(found.p) else f"{found.p:.3g}"
            lines.append(line)
    note = (
        "Over lengths and seeds that both have. p: exact sign flips of paired seeds, two-sided, "
        "not corrected for the number of pairs; with n seeds it is never below 2^(1 - n), .0625 "
        "for five."
    )
    title = f"Pairs of arms beyond training: {title_of(metric)}"
    return [Table(title, lines, note, main=len(lines) <= 3)] if lines else []


def _every_seed(task: Task) -> Table:
    """The headline of each run; Wilson's interval of shares of examples that were drawn."""
    metric, grid = task.headline, {}
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
    shown = _value(metric, [point])
    if not point.trials or not math.isfinite(point.value):
        return shown
    bounds = wilson(point.value * point.trials, point.trials)
    return f"{shown} {_range(metric, *bounds)}"


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
