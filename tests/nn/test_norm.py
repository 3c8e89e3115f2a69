"""Norms against float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn.norm import NORMS
from tests.builders import model_config


def make(kind, scale=None, bias=None, width=4, **changes):
    module = NORMS[kind](width, model_config(**changes))
    graphdef, _ = nnx.split(module)
    params = {"scale": jnp.ones(width) if scale is None else jnp.asarray(scale)}
    if kind == "layernorm" and changes.get("layernorm.bias", True):
        params["bias"] = jnp.zeros(width) if bias is None else jnp.asarray(bias)
    return nnx.merge(graphdef, params)


@pytest.mark.parametrize("x", [[2.0, 4, 6, 8], [100.0, 101, 102, 103]])
def test_layernorm_by_hand(x):
    y = make("layernorm")(jnp.array([[x]]))
    np.testing.assert_allclose(y, [[[-1.342, -0.447, 0.447, 1.342]]], atol=6e-4)


def test_scale_and_bias():
    y = make("layernorm", scale=[1.0, 2, 3, 4], bias=[0.0, 0, 0, 10])(jnp.array([[2.0, 4, 6, 8]]))
    z = 1 / 5**0.5
    np.testing.assert_allclose(y, [[-3 * z, -2 * z, 3 * z, 12 * z + 10]], rtol=1e-5)


def test_layernorm_without_bias_has_no_bias():
    module = make("layernorm", **{"layernorm.bias": False})
    assert module.bias is None
    assert module(jnp.array([[2.0, 4, 6, 8]])).shape == (1, 4)


def test_rmsnorm_by_hand():
    y = make("rmsnorm", scale=[1.0, 1, 2, 1])(jnp.array([[2.0, -2, 2, -2]]))
    np.testing.assert_allclose(y, [[1, -1, 2, -1]], rtol=1e-5)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_epsilon_is_added_to_the_variance(kind):
    y = make(kind, norm_epsilon=3.0)(jnp.array([[1.0, -1, 1, -1]]))
    np.testing.assert_allclose(y, [[0.5, -0.5, 0.5, -0.5]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("offset", [0, 1000])
def test_bfloat16_activations_are_normalised_in_float32(kind, offset):
    """The only error is that of rounding the result: 2**-8 of it."""
    x = jnp.asarray(np.random.default_rng(0).normal(offset, 30, (5, 64)), jnp.bfloat16)
    y = make(kind, width=64)(x)
    assert y.dtype == jnp.bfloat16
    exact = np.asarray(x, np.float64)
    if kind == "layernorm":
        exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=2**-8, atol=1e-6)
