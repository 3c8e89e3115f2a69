"""Linear biases: the slopes of any number of heads, both directions, the form without i."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import parameters
from jaxformer.nn.positions import Alibi, KerplePower, LearnedAlibi
from jaxformer.nn.positions.alibi import slopes
from tests.builders import model_config

EIGHT = [2.0**-h for h in range(1, 9)]


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [0.00390625]),
        (2, [0.0625, 0.00390625]),
        (3, [0.0625, 0.00390625, 0.25]),
        (4, [0.25, 0.0625, 0.015625, 0.00390625]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, EIGHT),
        (12, [*EIGHT, 0.707107, 0.353553, 0.176777, 0.088388]),
    ],
)
def test_slopes(num_heads, expected):
    np.testing.assert_allclose(slopes(num_heads), expected, atol=5e-7)


def config(num_heads=8):
    return model_config(num_heads=num_heads, d_model=2 * num_heads, **{"position.kind": "alibi"})


def test_the_bias():
    """-s_h |i - j|: head 1 of 8 at i = 5, j = 2 has -1.5, and at i = 2, j = 5 too."""
    q_positions_BL, k_positions_BS = jnp.array([[5, 2], [0, 7]]), jnp.array([[2, 5, 6], [7, 0, 1]])
    bias_BHLS = Alibi(config(), True).bias(q_positions_BL, k_positions_BS)
    assert bias_BHLS.shape == (2, 8, 2, 3)
    assert bias_BHLS.dtype == jnp.float32
    assert bias_BHLS[0, 0, 0, 0] == bias_BHLS[0, 0, 1, 1] == -1.5
    away_BLS = np.array([[[3, 0, 1], [0, 3, 4]], [[7, 0, 1], [0, 7, 6]]])
    expected = -np.array(EIGHT)[None, :, None, None] * away_BLS[:, None]
    np.testing.assert_allclose(bias_BHLS, expected, rtol=1e-6)
    both = Alibi(config(), False).bias(q_positions_BL, k_positions_BS)
    np.testing.assert_array_equal(both, bias_BHLS)


def test_the_form_without_the_query_is_equal_after_softmax():
    """BLOOM adds s_h j: a constant s_h i less in each row of a causal model."""
    at_L = jnp.arange(7)[None]
    logits_HLS = jnp.asarray(np.random.default_rng(0).normal(size=(8, 7, 7)), jnp.float32)
    causal_LS = np.tri(7, dtype=bool)[None]
    other = slopes(8)[:, None, None] * np.arange(7)[None, None]
    weights = [
        jax.nn.softmax(jnp.where(causal_LS, logits_HLS + bias, -jnp.inf))
        for bias in (Alibi(config(), True).bias(at_L, at_L)[0], other.astype(np.float32))
    ]
    np.testing.assert_allclose(*weights, atol=1e-6)


def test_learned_slopes_start_as_those_of_alibi():
    at_L, encoding = jnp.arange(5)[None], LearnedAlibi(config(12), True)
    graphdef, _ = nnx.split(encoding)
    start = parameters.fill(encoding, jax.random.key(0))
    learned = nnx.merge(graphdef, start).bias(at_L, at_L)
    np.testing.assert_allclose(learned, Alibi(config(12), True).bias(at_L, at_L), rtol=1e-5)
    other = nnx.merge(graphdef, {"log_slopes": jnp.log(jnp.arange(1.0, 13))}).bias(at_L, at_L)
    np.testing.assert_allclose(other[0, :, 4, 1], -3 * np.arange(1.0, 13), rtol=1e-5)


def test_learned_slopes_are_kerples_power_1():
    at_L, slopes_H = jnp.arange(9)[None], jnp.asarray(slopes(4) + 0.01, jnp.float32)
    alibi = nnx.split(LearnedAlibi(config(4), True))[0]
    power = nnx.split(KerplePower(config(4), True))[0]
    biases = [
        nnx.merge(alibi, {"log_slopes": jnp.log(slopes_H)}).bias(at_L, at_L),
        nnx.merge(power, {"r1": slopes_H, "r2": jnp.ones(4)}).bias(at_L, at_L),
    ]
    np.testing.assert_allclose(*biases, rtol=1e-5, atol=1e-7)
