"""Scores of heads on weights whose scores are known."""

import numpy as np
import pytest

from jaxformer.analysis.attention_scores import (
    SCORES,
    distance_profile,
    mean_cosine,
    weight_on,
)

L = 6
TOKENS = np.array([[1, 5, 6, 5, 6, 5], [1, 2, 3, 4, 0, 0]])
REAL = np.array([[True] * 6, [True] * 4 + [False] * 2])


def heads(*patterns):
    """[1, 2, heads, L, L]: each query on what its pattern says; padding looks at nothing."""
    weights = np.stack([np.stack([p] * 2) for p in patterns], 1)[None]
    return weights * REAL[None, :, None, :, None]


AT = np.arange(L)
EVEN = np.tril(np.ones((L, L))) / (AT + 1)[:, None]
FIRST = np.eye(L)[np.zeros(L, int)]
BEFORE = np.eye(L)[np.maximum(AT - 1, 0)]
ITSELF = np.eye(L)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("entropy", [np.log([1, 2, 3, 4, 5, 6, 1, 2, 3, 4]).mean(), 0, 0, 0]),
        ("sink", [(1 / np.array([2, 3, 4, 5, 6, 2, 3, 4])).mean(), 1, 2 / 8, 0]),
        ("previous_token", [(1 / np.array([2, 3, 4, 5, 6, 2, 3, 4])).mean(), 2 / 8, 1, 0]),
    ],
)
def test_scores(name, expected):
    found = SCORES[name](heads(EVEN, FIRST, BEFORE, ITSELF), TOKENS, REAL)
    np.testing.assert_allclose(found, [expected])


def test_induction():
    """Of the row 1 5 6 5 6 5: queries 3, 4 and 5 have seen their token, at 1, 2 and 1, 3."""
    copies = np.zeros((L, L))
    copies[[3, 4, 5, 5], [2, 3, 2, 4]] = [1, 1, 0.5, 0.5]
    late = np.zeros((L, L))
    late[[3, 4, 5], [2, 0, 0]] = 1
    found = SCORES["induction"](heads(copies, late, EVEN), TOKENS, REAL)
    np.testing.assert_allclose(found, [[1, 1 / 3, (1 / 4 + 1 / 5 + 2 / 6) / 3]])
    assert np.isnan(SCORES["induction"](heads(EVEN)[:, 1:], TOKENS[1:], REAL[1:])).all()


def test_distance_profile():
    found = distance_profile(heads(ITSELF, BEFORE, FIRST), REAL)
    np.testing.assert_allclose(found[0, 0], [1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(found[0, 1], [2 / 10, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(found[0, 2], [2 / 10, 2 / 8, 2 / 6, 2 / 4, 1 / 2, 1])


def test_weight_on():
    """The mean over the keys of a row; a row without keys does not count."""
    keys = np.zeros((2, L), bool)
    keys[0, [1, 2]] = True
    found = weight_on(heads(EVEN, BEFORE), np.array([3, 3]), keys)
    np.testing.assert_allclose(found, [[1 / 4, 1 / 2]])
    assert np.isnan(weight_on(heads(EVEN), np.array([3, 3]), keys & False)).all()


def test_mean_cosine():
    real = np.array([[True, True, True], [True, True, False], [True, False, False]])
    one = np.ones((3, 3, 2)) * np.array([1.0, 2.0, 3.0])[:, None]  # one direction
    apart = np.array([[[1, 0], [0, 2], [-3, 0]], [[1, 0], [1, 0], [9, 9]], [[1, 1]] * 3], float)
    np.testing.assert_allclose(mean_cosine(np.stack([one, apart]), real), [1, (-1 / 3 + 1) / 2])
