"""KERPLE's logarithmic and power biases: worked values, bounds, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import parameters
from jaxformer.nn.positions import KerpleLog, KerplePower
from tests.builders import model_config

AT_L = jnp.arange(11)[None]


def bias(cls, r1, r2, causal=True):
    """[L, S] of a head with these numbers."""
    cfg = model_config(num_heads=2, d_model=8)
    values = {"r1": jnp.array([r1, 1.0]), "r2": jnp.array([r2, 1.0])}
    encoding = nnx.merge(nnx.split(cls(cfg, causal))[0], values)
    bias_BHLS = encoding.bias(AT_L, AT_L)
    assert bias_BHLS.dtype == jnp.float32
    return np.asarray(bias_BHLS[0, 0])


def test_logarithm():
    expected = [0, -0.693147, -1.098612, -1.386294]
    np.testing.assert_allclose(bias(KerpleLog, 1.0, 1.0)[[0, 1, 2, 3], 0], expected, atol=1e-6)
    assert abs(bias(KerpleLog, 0.5, 2.0)[10, 0] - -1.522261) < 1e-6


def test_power():
    np.testing.assert_allclose(bias(KerplePower, 0.5, 0.5)[[1, 4, 9], 0], [-0.5, -1, -1.5])
    np.testing.assert_array_equal(bias(KerplePower, 0.5, 0.5).diagonal(), 0)


@pytest.mark.parametrize("cls", [KerpleLog, KerplePower])
def test_both_directions_are_alike(cls):
    causal_LS, both_LS = bias(cls, 0.7, 0.4), bias(cls, 0.7, 0.4, causal=False)
    np.testing.assert_array_equal(both_LS, both_LS.T)
    np.testing.assert_array_equal(causal_LS, both_LS)


def test_numbers_are_cut_off():
    for cls in (KerpleLog, KerplePower):
        np.testing.assert_allclose(bias(cls, -3.0, -3.0), bias(cls, 0.01, 0.01), atol=1e-6)
    np.testing.assert_allclose(bias(KerplePower, 1.0, 9.0), bias(KerplePower, 1.0, 2.0), rtol=1e-5)


@pytest.mark.parametrize("cls", [KerpleLog, KerplePower])
def test_a_number_that_is_cut_off_still_learns(cls):
    graphdef, _ = nnx.split(cls(model_config(), True))
    values = {"r1": jnp.array([-1.0, 0.5, 0.0, 2.0]), "r2": jnp.array([0.5, -1.0, 0.0, 3.0])}

    def total(values):
        return nnx.merge(graphdef, values).bias(AT_L, AT_L).sum()

    for gradient in jax.tree.leaves(jax.jit(jax.grad(total))(values)):
        assert np.isfinite(gradient).all()
        assert (np.asarray(gradient) < 0).all()  # more of either is a steeper fall


@pytest.mark.parametrize(("cls", "highs"), [(KerpleLog, (2, 1)), (KerplePower, (1, 2))])
def test_where_the_numbers_start(cls, highs):
    cfg = model_config(num_heads=512, d_model=1024)
    start = parameters.fill(cls(cfg, True), jax.random.key(0))
    for name, high in zip(("r1", "r2"), highs, strict=True):
        assert 0 <= start[name].min() < 0.02 * high
        assert 0.98 * high < start[name].max() < high
