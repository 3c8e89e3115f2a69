"""Intervals and averages for tables."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    low: float
    high: float


def wilson(successes: float, trials: float, z: float = 1.959963984540054) -> Interval:
    """Wilson's score interval of a proportion (1927); z is a normal quantile, by default 95 %.

    Unlike the normal approximation it stays within 0 and 1 and is not empty at 0 or all successes.
    No trials give the whole of [0, 1].
    """
    if not trials:
        return Interval(0.0, 1.0)
    share, square = successes / trials, z * z
    centre = share + square / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    scale = 1 + square / trials
    return Interval(max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))


class MeanStd(NamedTuple):
    mean: float
    std: float


def mean_std(values: Sequence[float]) -> MeanStd:
    """Mean over seeds and sample standard deviation (ddof = 1; nan for a single seed)."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return MeanStd(mean, math.nan)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return MeanStd(mean, math.sqrt(squares / (len(values) - 1)))


def ratio(total: float, weight: float) -> float:
    """total / weight; 0/0 is 0."""
    return total / weight if weight else 0.0
