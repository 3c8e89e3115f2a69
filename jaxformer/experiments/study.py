"""What a sweep's rows say: tasks, their arms, and of each arm every run at every length.

An arm is a setting of the axes (and of the test-time scheme, where there are several); a run is
one pair of model and data seed, and runs of the same seeds are paired across arms. Where the share
of right answers is measured, a run has learned the task if its mean over lengths in distribution
is at least .99.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.evaluation.coverage import UNTRAINED
from jaxformer.evaluation.statistics import Comparison, Interval, bootstrap, compare, wilson
from jaxformer.experiments.rows import ID, SHARES, Row, metrics

HEADLINES = ("agreement", "exact_match", "loss", "nll")  # the first of these is shown
IN_PERCENT = (*SHARES, "token_accuracy_tf", "accuracy", "macro_f1", *UNTRAINED)
LEARNED = 0.99
Run = tuple[Any, Any]  # model seed, data seed


class Point(NamedTuple):
    """A value and the number of independent examples behind it, 0 where none are to be drawn."""

    value: float
    trials: int


@dataclasses.dataclass(frozen=True)
class Arm:
    """One setting: metric → run → length → point, and metric → run → value of whole splits."""

    name: str
    settings: Mapping[str, str]
    by_length: Mapping[str, Mapping[Run, Mapping[int, Point]]]
    overall: Mapping[str, Mapping[Run, float]]
    learned: Mapping[Run, bool | None]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(self.learned)

    @property
    def failed(self) -> tuple[Run, ...]:
        """Runs that did not learn the task in distribution."""
        return tuple(run for run, learned in self.learned.items() if learned is False)

    def at(self, metric: str, length: int, runs: Sequence[Run]) -> list[Point]:
        """The points of those runs that have one."""
        of_runs = self.by_length.get(metric, {})
        return [of_runs[run][length] for run in runs if length in of_runs.get(run, {})]

    def grid(self, metric: str, lengths: Sequence[int], runs: Sequence[Run]) -> list[list[Point]]:
        """Points of the runs that have all of the lengths, a row a run."""
        found = [self.by_length.get(metric, {}).get(run, {}) for run in runs]
        return [[points[n] for n in lengths] for points in found if set(lengths) <= set(points)]


@dataclasses.dataclass(frozen=True)
class Task:
    """The rows of one task; `lengths` are all that any arm was tested at."""

    name: str
    arms: tuple[Arm, ...]
    lengths: tuple[int, ...]
    buckets: Mapping[int, str]
    examples: Mapping[int, int]
    exhaustive: frozenset[int]
    metrics: tuple[str, ...]
    headline: str

    @property
    def is_share(self) -> bool:
        """Whether the headline counts right answers: more is better, and .99 is learned."""
        return self.headline in SHARES

    def of(self, bucket: str) -> tuple[int, ...]:
        return tuple(n for n in self.lengths if self.buckets[n] == bucket)


def read_study(rows: Sequence[Row], axes: Sequence[str]) -> list[Task]:
    """Groups tidy rows by task, and within by arm; both in order of first appearance."""
    names = dict.fromkeys(str(row["task"]) for row in rows)
    return [_task(name, [row for row in rows if str(row["task"]) == name], axes) for name in names]


def interval(grid: Sequence[Sequence[Point]]) -> Interval:
    """The hierarchical bootstrap's 95 % interval of the mean over runs and lengths.

    Of a single share it is Wilson's, which is not empty at 0 and 1.
    """
    return _interval(tuple(map(tuple, grid)))


@functools.lru_cache(maxsize=10_000)  # tables, figures and json ask for the same ones
def _interval(grid: tuple[tuple[Point, ...], ...]) -> Interval:
    first = grid[0][0]
    if len(grid) == len(grid[0]) == 1 and first.trials and math.isfinite(first.value):
        return wilson(first.value * first.trials, first.trials)
    return bootstrap(*_split(grid))


def mean(grid: Sequence[Sequence[Point]]) -> float:
    return float(np.mean([[point.value for point in row] for row in grid]))


def run_means(grid: Sequence[Sequence[Point]]) -> list[float]:
    """Of each run the mean over lengths."""
    return [float(np.mean([point.value for point in row])) for row in grid]


def compare_arms(task: Task, a: Arm, b: Arm, bucket: str) -> Comparison | None:
    """A minus B on the headline over runs and lengths of a bucket that both have."""
    lengths = [n for n in task.of(bucket) if _has(task, a, n) and _has(task, b, n)]
    runs = [
        run
        for run in a.runs
        if a.grid(task.headline, lengths, [run]) and b.grid(task.headline, lengths, [run])
    ]
    if not lengths or not runs:
        return None
    of_a, of_b = (_split(arm.grid(task.headline, lengths, runs)) for arm in (a, b))
    return compare(of_a[0], of_b[0], of_a[1], of_b[1])


def short(text: str) -> str:
    """'t5+model.position.t5.max_distance=32' is 't5+max_distance=32'."""
    return re.sub(r"(?:[a-z_]\w*\.)+(?=\w+=)", "", text)


def _has(task: Task, arm: Arm, length: int) -> bool:
    return bool(arm.at(task.headline, length, arm.runs))


def _split(grid: Sequence[Sequence[Point]]) -> tuple[list[list[float]], list[list[int]]]:
    values = [[point.value for point in row] for row in grid]
    return values, [[point.trials for point in row] for row in grid]


def _task(name: str, rows: Sequence[Row], axes: Sequence[str]) -> Task:
    by_length = [row for row in rows if row["length"] != ""]
    extras = [key for key in ("split", "positions") if len({row[key] for row in by_length}) > 1]
    differing = [axis for axis in axes if len({row.get(axis, "") for row in rows}) > 1]
    groups: dict[tuple[str, ...], list[Row]] = {}
    keys = [*(differing or axes[:1]), *extras]
    for row in rows:
        if row["length"] == "" and extras:
            continue  # of a whole split: not of one arm
        groups.setdefault(tuple(str(row.get(key, "")) for key in keys), []).append(row)
    measured = metrics(by_length or rows, axes)
    headline = next((m for m in HEADLINES if m in measured), (measured or [""])[0])
    lengths = sorted({row["length"] for row in by_length})
    return Task(
        name=name,
        arms=tuple(
            _arm(dict(zip(keys, values, strict=True)), group, axes, headline)
            for values, group in groups.items()
        ),
        lengths=tuple(lengths),
        buckets={n: _common([r["bucket"] for r in by_length if r["length"] == n]) for n in lengths},
        examples={
            n: min(row["n_examples"] for row in by_length if row["length"] == n)
            for n in lengths
            if all(row.get("n_examples") for row in by_length if row["length"] == n)
        },
        exhaustive=frozenset(row["length"] for row in by_length if row.get("exhaustive")),
        metrics=tuple(m for m in measured if not _is_empty(m, by_length or rows)),
        headline=headline,
    )


def _common(buckets: Sequence[str]) -> str:
    """'' where arms were trained up to different lengths and this one lies between."""
    return buckets[0] if len(set(buckets)) == 1 else ""


def _is_empty(metric: str, rows: Sequence[Row]) -> bool:
    """Whether it counts what never happened: nobody needs a table of that."""
    return metric in UNTRAINED and not any(row.get(metric) for row in rows)


def _arm(
    settings: Mapping[str, str], rows: Sequence[Row], axes: Sequence[str], headline: str
) -> Arm:
    by_length: dict[str, dict[Run, dict[int, Point]]] = {}
    overall: dict[str, dict[Run, float]] = {}
    of_id: dict[Run, list[float]] = {}
    for row in rows:
        run = row["seed"], row["data_seed"]
        of_id.setdefault(run, [])
        for metric in metrics([row], axes):
            if row["length"] == "":
                title = metric if row["split"] == "validation" else f"{metric}, {row['split']}"
                overall.setdefault(title, {})[run] = row[metric]
                continue
            point = Point(row[metric], row.get("n_examples", 0) if metric in SHARES else 0)
            by_length.setdefault(metric, {}).setdefault(run, {})[row["length"]] = point
        if row["bucket"] == ID and headline in SHARES and headline in row:
            of_id[run].append(row[headline])
    learned = {run: bool(np.mean(v) >= LEARNED) if v else None for run, v in of_id.items()}
    return Arm(_name(settings), settings, by_length, overall, learned)


def _name(settings: Mapping[str, str]) -> str:
    """The value alone where one setting differs, otherwise each with its field's last word."""
    if len(settings) == 1:
        return short(next(iter(settings.values())))
    words = [f"{key.split('.')[-1]}={short(value)}" for key, value in settings.items()]
    return ", ".join(words) or "all runs"
