"""Linear maps: shapes, types and accumulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import parameters
from jaxformer.nn.linear import Linear, affine, lookup

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


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_turned_layer_gives_what_it_gave(dtype, rows):
    """Its kernel is stored [out, in], and in the type that the product takes."""
    rng = np.random.default_rng(0)
    draw = parameters.normal(0.5)
    layer = Linear(24, 7, bias=True, initializer=draw, dtype=jnp.dtype(dtype))
    kernel_IO = jnp.asarray(rng.normal(size=(24, 7)), jnp.float32)
    layer.kernel, layer.bias = nnx.Param(kernel_IO), nnx.Param(jnp.arange(7.0))
    x = jnp.asarray(rng.normal(size=(rows, 24)), dtype)
    expected = layer(x)
    layer.turn()
    assert layer.kernel[...].shape == (7, 24)
    assert layer.kernel[...].dtype == dtype
    np.testing.assert_allclose(np.float32(layer(x)), np.float32(expected), rtol=2**-8)
    halved = np.float64(kernel_IO.astype(dtype))
    exact = np.float64(x) @ halved + np.arange(7)
    np.testing.assert_allclose(np.float64(layer(x)), exact, rtol=2**-8, atol=2**-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_table_is_looked_up_exactly(dtype):
    """Also where bits stand for numbers; an id outside of it is NaN."""
    values_VD = np.float32([[0.0, -0.0], [np.inf, -1.5], [2**-133, np.nan], [3.0, -(2.0**100)]])
    ids_BL = jnp.array([[0, 1, 2], [3, 4, -1]])
    found_BLD = jax.jit(lookup)(jnp.asarray(values_VD, dtype), ids_BL)
    expected_BLD = np.full((2, 3, 2), np.nan, np.float32)
    expected_BLD[0], expected_BLD[1, 0] = values_VD[:3], values_VD[3]
    assert found_BLD.dtype == jnp.float32
    np.testing.assert_array_equal(found_BLD, expected_BLD)
    np.testing.assert_array_equal(np.signbit(found_BLD[0, 0]), [False, True])


def test_the_gradient_of_a_table_in_bfloat16():
    """Each row has the sum of what it was taken for; by bits alone there would be none."""
    table_VD = jnp.asarray(RNG.normal(size=(5, 3)), jnp.bfloat16)
    ids_BL, weights_BLD = jnp.array([[0, 3, 3], [1, 0, 0]]), jnp.arange(18.0).reshape(2, 3, 3)
    found_VD = jax.jit(jax.grad(lambda x: (lookup(x, ids_BL) * weights_BLD).sum()))(table_VD)
    expected_VD = np.zeros((5, 3))
    np.add.at(expected_VD, np.asarray(ids_BL), np.asarray(weights_BLD))
    assert found_VD.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(found_VD), expected_VD, rtol=2**-8)
