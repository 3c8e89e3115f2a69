"""Intervals and averages against closed values."""

import math

import numpy as np
import pytest
import scipy.stats

from jaxformer.evaluation.statistics import (
    bootstrap,
    compare,
    interquartile_mean,
    longest,
    mean_reciprocal_rank,
    mean_std,
    rank_correlation,
    ranks,
    ratio,
    sign_flip_p,
    wilson,
)


def test_wilson_solves_its_defining_equation():
    z = 1.959963984540054
    for successes, trials in ((0, 10), (3, 10), (50, 100), (997, 1000)):
        share = successes / trials
        for bound in wilson(successes, trials):
            gap = abs(share - bound)
            assert gap == pytest.approx(z * math.sqrt(bound * (1 - bound) / trials), abs=1e-9)


def test_wilson_at_the_ends():
    z2 = 1.959963984540054**2
    assert wilson(10, 10) == pytest.approx((10 / (10 + z2), 1.0))
    assert wilson(0, 10) == pytest.approx((0.0, z2 / (10 + z2)))
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_published_value():
    # Newcombe 1998, table I: 81 of 263, method 3.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_mean_and_sample_deviation():
    values = [1.0, 2.0, 4.0]
    assert mean_std(values) == pytest.approx((7 / 3, np.std(values, ddof=1)))
    mean, std = mean_std([5.0])
    assert mean == 5.0
    assert math.isnan(std)


def test_zero_over_zero_is_zero():
    assert ratio(0.0, 0.0) == 0.0
    assert ratio(3.0, 4.0) == 0.75


def test_interquartile_mean_cuts_a_quarter_at_either_end():
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -50]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([0, 0.2, 0.5, 0.9, 1]) == pytest.approx((0.15 + 0.5 + 0.675) / 2.5)
    assert interquartile_mean([3.0]) == 3.0
    assert interquartile_mean([1.0, 2.0]) == 1.5
    values = np.random.default_rng(0).normal(size=7)
    # By its definition: the mean of the sample's quantile function, a step of width 1/7 a value,
    # over [1/4, 3/4]; each value written out four times makes both quarters whole.
    many = np.sort(np.repeat(values, 4))
    assert interquartile_mean(values) == pytest.approx(many[7:21].mean())


def draw_examples(rates, num_examples, draws):
    """The hierarchical bootstrap by hand: seeds, then examples that are right or wrong."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(draws):
        shares = []
        for seed in rng.integers(len(rates), size=len(rates)):
            right = round(rates[seed] * num_examples)
            examples = np.arange(num_examples) < right
            shares.append(examples[rng.integers(num_examples, size=num_examples)].mean())
        found.append(np.mean(shares))
    return np.quantile(found, (0.025, 0.975))


def test_bootstrap_is_that_of_examples_drawn_one_by_one():
    rates, n = [0.2, 0.5, 0.9], 40
    wanted = draw_examples(rates, n, 4000)
    found = bootstrap([[rate] for rate in rates], [[n]] * 3)
    assert found == pytest.approx(wanted, abs=0.012)
    only_seeds = bootstrap([[rate] for rate in rates])
    assert only_seeds == pytest.approx((0.2, 0.9))  # 1/27 of the draws have one seed three times
    more = bootstrap([[rate] for rate in [0.5, 0.5, 0.5]], [[n]] * 3)
    assert more.low < 0.42 and more.high > 0.58  # seeds that agree leave the examples' chance


def test_bootstrap_of_one_seed_is_the_binomial_interval():
    low, high = bootstrap([[0.3]], [[50]])
    wanted = scipy.stats.binom.ppf((0.025, 0.975), 50, 0.3) / 50
    assert (low, high) == pytest.approx(tuple(wanted), abs=1 / 50)  # to one example
    assert all(math.isnan(bound) for bound in bootstrap([[0.3]]))
    assert all(math.isnan(bound) for bound in bootstrap([[0.3], [math.nan]]))


def test_bootstrap_means_over_lengths_and_is_the_same_each_time():
    values = [[1.0, 0.0], [0.8, 0.4], [0.9, 0.5]]
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap(values) == pytest.approx(bootstrap([[0.5], [0.6], [0.7]]))
    assert bootstrap([[1.0, 1.0]] * 3, [[1000, 1000]] * 3) == (1.0, 1.0)


def test_sign_flips_by_hand():
    assert sign_flip_p([1, 2, 3, 4, 5]) == 2 / 32  # only all + and all - are as far
    assert sign_flip_p([0.1, 0.2, 0.3]) == 2 / 8
    assert sign_flip_p([1, -1]) == 1.0
    assert sign_flip_p([3, 1, -1]) == 6 / 8  # |sums|: 5 twice, 3 four times, 1 twice
    assert sign_flip_p([0, 0, 0]) == 1.0
    values = np.random.default_rng(1).normal(0.4, 1, 9)
    wanted = scipy.stats.permutation_test(
        (values, np.zeros(9)), lambda a, b: np.mean(a - b), permutation_type="samples"
    )
    assert sign_flip_p(values) == pytest.approx(wanted.pvalue)


def test_sign_flips_of_many_pairs_are_drawn():
    values = np.random.default_rng(2).normal(0.3, 1, 30)
    wanted = 2 * scipy.stats.norm.sf(abs(values.sum()) / np.sqrt((values**2).sum()))
    assert sign_flip_p(values) == pytest.approx(wanted, abs=0.02)
    assert sign_flip_p([1.0] * 40) == 1 / 10_000  # never 0: the observed way is one of them


def test_paired_comparison():
    a, b = [[0.9], [0.6], [0.8]], [[0.5], [0.4], [0.1]]
    found = compare(a, b)
    assert found.difference == pytest.approx((0.4 + 0.2 + 0.7) / 3)
    assert (found.low, found.high) == pytest.approx((0.2, 0.7))
    assert (found.p, found.pairs) == (0.25, 3)
    # Paired: what both arms share of a seed's luck drops out.
    luck = [[0.1], [0.5], [0.9]]
    level = compare([[x + 0.05] for [x] in luck], luck)
    assert (level.low, level.high) == pytest.approx((0.05, 0.05))
    wide = compare([[x + 0.05] for [x] in luck], luck, [[100]] * 3, [[100]] * 3)
    assert wide.low < 0 < wide.high
    assert math.isnan(compare([[1.0]], [[0.0]]).low)


def test_reciprocal_ranks_with_ties_averaged():
    found = mean_reciprocal_rank([[0.9, 0.5, 0.1], [0.2, 0.2, 0.0], [0, 0, 0]])
    assert found == pytest.approx([(1 + 2 / 3 + 0.5) / 3, (0.5 + 2 / 3 + 0.5) / 3, 3.5 / 9])
    assert mean_reciprocal_rank([[math.nan, -2.0, -3.0]]) == pytest.approx([1 / 3, 1, 1 / 2])
    values = [3.0, 1.0, 3.0, 2.0, 3.0, 1.0]
    assert ranks(values) == pytest.approx(scipy.stats.rankdata(values))


def test_rank_correlation():
    a, b = [1, 2, 2, 5, 4], [0.3, 0.1, 0.9, 0.9, 0.8]
    assert rank_correlation(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert rank_correlation([1, 2, 3], [9, 5, 1]) == pytest.approx(-1)
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))
    assert math.isnan(rank_correlation([1, math.nan, 3], [1, 2, 3]))


def test_the_longest_length_stops_at_the_first_that_fails():
    rates = {4: 1.0, 8: 0.99, 16: 0.4, 24: 0.95, 12: 0.9}
    assert [longest(rates, r) for r in (0.5, 0.9, 0.99, 1.0)] == [12, 12, 8, 4]
    assert longest(rates, 0.3) == 24
    assert longest({4: 0.2, 8: 1.0}, 0.5) is None
    assert longest({4: math.nan, 8: 1.0}, 0.5) is None
