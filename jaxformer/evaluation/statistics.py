"""Averages over seeds, intervals, and comparisons between arms; float64, and no state.

What is random here, bootstrap draws and sign flips of many seeds, comes from a fixed key: the same
numbers give the same table, whatever else is in it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 10_000
KEY = 20_210_830  # of all draws; Agarwal et al. 2021 went to arXiv on that day
MAX_EXACT = 12  # pairs whose 2^n sign flips are all enumerated


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


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half (Agarwal et al. 2021): a quarter is cut at either end.

    Where a quarter is no whole number of values, the outermost that stay count in part: of five
    values the middle three with weights .75, 1, .75. (scipy's trim_mean keeps them whole.)
    """
    ordered = np.sort(np.asarray(values, np.float64))
    count = len(ordered)
    # Value i stands for the stretch [i, i + 1] of the count; what lies in the middle half counts.
    starts = np.arange(count)
    weights = np.minimum(starts + 1, 0.75 * count) - np.maximum(starts, 0.25 * count)
    weights = np.clip(weights, 0, None)
    return float(weights @ ordered / weights.sum())


def bootstrap(
    values: Sequence[Sequence[float]],
    trials: Sequence[Sequence[float]] | None = None,
    *,
    draws: int = DRAWS,
) -> Interval:
    """95 % percentile interval of the mean: seeds are resampled, then examples within each seed.

    `values` has a row a seed and a column a length; the mean is over all of them. `trials` says
    how many examples stand behind each value that is a share of independent ones: their resampled
    share is a binomial draw of that many with the seed's rate, which is the same as drawing the
    examples, each right or wrong, with replacement. 0 trials, or None: the values are taken as
    they are, and only seeds are resampled. nan where there is one seed and no trials.

    The interval is of the mean over seeds like these, not of a single run. With five seeds or fewer
    percentile intervals are too narrow: look at the seeds.
    """
    rates_SL = np.asarray(values, np.float64)
    if not np.isfinite(rates_SL).all():
        return Interval(math.nan, math.nan)
    counts_SL = np.zeros_like(rates_SL) if trials is None else np.asarray(trials, np.float64)
    if len(rates_SL) == 1 and not counts_SL.any():
        return Interval(math.nan, math.nan)
    means = _resampled(rates_SL, counts_SL, np.random.default_rng(KEY), draws)
    return Interval(*np.quantile(means, (0.025, 0.975)).tolist())


class Comparison(NamedTuple):
    """Arm A minus arm B over seeds that both have."""

    difference: float
    low: float
    high: float
    p: float
    pairs: int


def compare(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    trials_a: Sequence[Sequence[float]] | None = None,
    trials_b: Sequence[Sequence[float]] | None = None,
    *,
    draws: int = DRAWS,
) -> Comparison:
    """The mean difference of paired seeds, its bootstrap interval, and a sign-flip p.

    Rows of `a` and `b` are the same seeds; columns and trials are those of `bootstrap`, which
    draws the same seeds of both here. p is the share of all 2^n ways to swap the arms within pairs
    whose mean difference is at least as far from 0: with n pairs it is never below 2^(1 - n), .0625
    for five. Beyond 12 pairs 10,000 random swaps, and none at all, stand for all.
    """
    rates_a, rates_b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    pairs = rates_a.mean(1) - rates_b.mean(1)
    mean = float(pairs.mean())
    if not np.isfinite(pairs).all():
        return Comparison(mean, math.nan, math.nan, math.nan, len(pairs))
    counts_a = np.zeros_like(rates_a) if trials_a is None else np.asarray(trials_a, np.float64)
    counts_b = np.zeros_like(rates_b) if trials_b is None else np.asarray(trials_b, np.float64)
    low = high = math.nan
    if len(pairs) > 1 or counts_a.any() or counts_b.any():
        rng = np.random.default_rng(KEY)
        chosen = rng.integers(len(pairs), size=(draws, len(pairs)))
        means = _resampled(rates_a, counts_a, rng, draws, chosen)
        means = means - _resampled(rates_b, counts_b, rng, draws, chosen)
        low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return Comparison(mean, low, high, sign_flip_p(pairs.tolist()), len(pairs))


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the mean of paired differences by flipping their signs (Fisher 1935)."""
    values = np.asarray(differences, np.float64)
    if len(values) <= MAX_EXACT:
        signs = np.asarray(list(itertools.product((1.0, -1.0), repeat=len(values))))
    else:
        rng = np.random.default_rng(KEY)
        signs = rng.choice((1.0, -1.0), size=(DRAWS, len(values)))
        signs[0] = 1.0
    sums = np.abs(signs @ values)
    return float((sums >= sums[0] - 1e-12 * np.abs(values).sum()).mean())


def mean_reciprocal_rank(scores: Sequence[Sequence[float]]) -> list[float]:
    """The mean of 1 / rank of each arm: a row a task (or a task and seed), a column an arm.

    Rank 1 has the highest score; arms that tie share the mean of the ranks they fill, so two that
    lead together have 1 / 1.5 each. A score that is nan is the lowest.
    """
    worse = [[math.inf if math.isnan(score) else -score for score in row] for row in scores]
    return (1 / np.stack([ranks(row) for row in worse])).mean(0).tolist()


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rho, ties averaged; nan where all values of a side are equal, or one is nan."""
    if any(math.isnan(value) for value in (*a, *b)):
        return math.nan
    x, y = (ranks(values) - (len(values) + 1) / 2 for values in (a, b))
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale else math.nan


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 1, the lowest value first; ties have the mean of their ranks."""
    array = np.asarray(values, np.float64)
    below = (array[None] < array[:, None]).sum(1)
    equal = (array[None] == array[:, None]).sum(1)
    return below + (equal + 1) / 2


def longest(rates: Mapping[int, float], at_least: float) -> int | None:
    """The longest tested length such that it and all shorter tested ones reach a rate.

    None where the shortest does not: a later recovery does not count.
    """
    found = None
    for length in sorted(rates):
        if not rates[length] >= at_least:
            break
        found = length
    return found


def _resampled(
    rates_SL: np.ndarray,
    counts_SL: np.ndarray,
    rng: np.random.Generator,
    draws: int,
    chosen: np.ndarray | None = None,
) -> np.ndarray:
    """float64[draws]: means over resampled seeds (rows `chosen`) and examples."""
    num_seeds, num_lengths = rates_SL.shape
    if chosen is None:
        chosen = rng.integers(num_seeds, size=(draws, num_seeds))
    total = np.zeros(draws)
    for column in range(num_lengths):  # one at a time: draws × seeds × lengths may be much memory
        rates, counts = rates_SL[chosen, column], counts_SL[chosen, column]
        if counts.any():
            right = rng.binomial(counts.astype(np.int64), np.clip(rates, 0, 1))
            rates = np.where(counts > 0, right / np.maximum(counts, 1), rates)
        total += rates.mean(1)
    return total / num_lengths
