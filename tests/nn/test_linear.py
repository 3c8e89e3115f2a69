"""Linear maps: shapes, types and accumulation."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.linear import affine

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 3, 4)], ids=str)
def test_any_leading_dimensions(leading):
    x, kernel_IO, bias_O = (RNG.normal(size=s).astype("f") for s in ((*leading, 5), (5, 7), (7,)))
    y = affine(x, jnp.asarray(kernel_IO), jnp.asarray(bias_O), jnp.dtype("float32"))
    np.testing.assert_allclose(y, x @ kernel_IO + bias_O, atol=1e-5)


def test_bfloat16_products_accumulate_in_float32():
    """4,096 products of 1 + 2**-7 with itself: a bfloat16 sum would stop at 256 or so."""
    one = 1 + 2**-7
    y = affine(jnp.full((1, 4096), one), jnp.full((4096, 1), one), None, jnp.dtype("bfloat16"))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, 4096 * one**2, rtol=1e-6)


def test_the_bias_is_added_in_float32():
    bias_O = jnp.array([1 + 2**-12])
    y = affine(jnp.zeros((1, 2)), jnp.zeros((2, 1)), bias_O, jnp.dtype("bfloat16"))
    assert y[0, 0] == 1 + 2**-12


def test_one_row_in_bfloat16_is_summed_in_float32():
    """On a CPU by another way than several rows are: bfloat16 inputs, no rounding between."""
    rng = np.random.default_rng(0)
    x_1I, kernel_IO = (
        jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((1, 96), (96, 40))
    )
    bias_O = jnp.asarray(rng.normal(size=40), jnp.float32)
    expected = np.float64(x_1I) @ np.float64(kernel_IO) + np.float64(bias_O)
    found = affine(x_1I, kernel_IO, bias_O, jnp.dtype("bfloat16"))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
