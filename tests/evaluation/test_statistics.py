"""Intervals and averages against closed values."""

import math

import numpy as np
import pytest

from jaxformer.evaluation.statistics import mean_std, ratio, wilson


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
