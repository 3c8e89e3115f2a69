"""Angles against float64, at positions where a float32 product is off by thousandths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.positions.angles import angles, frequencies

FAR = np.array([[0, 1, 1000, 32_767, 50_001, 65_534, 65_535, 1_000_003]])


def test_frequencies():
    np.testing.assert_allclose(frequencies(8, 1e4), [1, 0.1, 0.01, 0.001], rtol=1e-14)
    assert frequencies(6, 2.0).dtype == np.float64


@pytest.mark.parametrize("base", [1e4, 5e5, 1e7, 0.5, 1.0])
def test_far_positions(base):
    """At most 5e-5 up to 65,535 (a product of float32 numbers: 4e-3), 1e-3 at a million."""
    w_M = np.concatenate([frequencies(width, base) for width in (2, 16, 64, 96, 128, 256)])
    found_BLM = np.asarray(jax.jit(lambda t: angles(t, w_M))(jnp.asarray(FAR)), np.float64)
    assert np.abs(found_BLM).max() <= np.pi + 1e-6
    error_BLM = np.abs(np.exp(1j * found_BLM) - np.exp(1j * FAR[..., None] * w_M))
    assert error_BLM[:, :-1].max() < 5e-5
    assert error_BLM.max() < 1e-3
    assert angles(jnp.asarray(FAR), w_M).dtype == jnp.float32


def test_nothing_turns_at_frequency_0_or_position_0():
    assert not np.asarray(angles(jnp.asarray(FAR), np.zeros(3))).any()
    assert not np.asarray(angles(jnp.zeros((1, 1), jnp.int32), frequencies(8, 1e4))).any()
