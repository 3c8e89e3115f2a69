"""Sandwich: the paper's sums, the flatness of heads, far ids."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.positions import Sandwich
from tests.builders import model_config

SANDWICH = {"position.kind": "sandwich"}


def biases(heads, queries, keys, **changes):
    cfg = model_config(num_heads=heads, d_model=4 * heads, **SANDWICH | changes)
    return np.asarray(Sandwich(cfg, True).bias(jnp.array([queries]), jnp.array([keys])))[0]


def test_sums_of_128_dimensions():
    """Of the cosines: 64 at distance 0, then as computed from the formula in float64."""
    away = [0, 1, 2, 10, 100]
    sums = [64, 62.09368, 57.38186, 42.82002, 30.54345]
    bias_HLS = biases(8, [100], [100 - n for n in away])
    assert bias_HLS.shape == (8, 1, 5)
    for h in range(1, 9):  # 8h / H is h
        np.testing.assert_allclose(bias_HLS[h - 1, 0], (np.array(sums) - 64) / h, atol=4e-5)


def test_flatness_of_other_numbers_of_heads():
    """8h / H: 8/3, 16/3 and 8 of three heads."""
    bias_HLS = biases(3, [1], [0])
    expected = (62.09368 - 64) / np.array([8 / 3, 16 / 3, 8])
    np.testing.assert_allclose(bias_HLS[:, 0, 0], expected, atol=2e-5)


def test_both_directions_and_far_ids():
    near = biases(2, [0, 7], [7, 0])
    np.testing.assert_allclose(near, biases(2, [50_000, 50_007], [50_007, 50_000]), atol=1e-3)
    assert abs(near[0, 0, 0] - near[0, 1, 1]) < 1e-5


@pytest.mark.parametrize(("width", "words"), [(5, "even"), (0, "2 or more")])
def test_widths_without_pairs(width, words):
    with pytest.raises(UserError, match=words):
        model_config(**SANDWICH | {"position.sandwich.width": width})
