"""Rotary encodings; worked values of Su et al. 2021 §3.2."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.nn.positions import Rope
from tests.builders import model_config


def rope(head_dim, **section) -> Rope:
    section = {f"position.rope.{name}": value for name, value in section.items()}
    return Rope(model_config(head_dim=head_dim, **{"position.kind": "rope"}, **section), True)


def rotate(encoding: Rope, x, position, dtype=jnp.float32):
    """One vector at one position; as a query and as a key it turns alike."""
    x_BLHK = jnp.asarray(x, dtype)[None, None, None]
    q_BLHK, k_BLGK = encoding.rotate(x_BLHK, x_BLHK, *[jnp.full((1, 1), position, jnp.int32)] * 2)
    np.testing.assert_array_equal(q_BLHK, k_BLGK)
    assert q_BLHK.dtype == dtype
    return np.asarray(q_BLHK[0, 0, 0].astype(jnp.float32), np.float64)


ROTATED = {
    "interleaved": [-1.272233, -1.838865, 2.878668, 4.088187],
    "half": [-1.413353, 1.879118, -2.828857, 4.058191],
}


@pytest.mark.parametrize("layout", ROTATED)
def test_a_vector_at_position_3(layout):
    np.testing.assert_allclose(
        rotate(rope(4, layout=layout), [1, 2, 3, 4], 3), ROTATED[layout], atol=1e-5
    )


@pytest.mark.parametrize("positions", [(3, 1), (13, 11)])
def test_a_product_depends_on_the_distance_only(positions):
    encoding = rope(4)
    q, k = (
        rotate(encoding, [1, 2, 3, 4], positions[0]),
        rotate(encoding, [0.5, -1, 2, 0.25], positions[1]),
    )
    assert abs(q @ k - -3.160112) < 1e-5


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_fraction_rotates_the_first_dimensions_with_their_own_frequencies(layout):
    """d = 16, f = 1/4: frequencies 1 and .01 over four dimensions, the others unchanged."""
    x = np.random.default_rng(0).normal(size=16).astype(np.float32)
    y = rotate(rope(16, fraction=0.25, layout=layout), x, 7)
    np.testing.assert_array_equal(y[4:], x[4:])
    pairs = [(0, 2), (1, 3)] if layout == "half" else [(0, 1), (2, 3)]
    for (a, b), angle in zip(pairs, (7, 0.07), strict=True):
        turned = (x[a] + 1j * x[b]) * np.exp(1j * angle)
        np.testing.assert_allclose([y[a], y[b]], [turned.real, turned.imag], atol=1e-6)


@pytest.mark.parametrize(("fraction", "head_dim", "width"), [(0.07, 200, 14), (0.29, 200, 58)])
def test_a_fraction_that_is_no_binary_number(fraction, head_dim, width):
    """.07 · 200 is 14.000000000000002 and .29 · 200 is 57.99999999999999 in floating point."""
    encoding = rope(head_dim, fraction=fraction)
    x = np.ones(head_dim, np.float32)
    assert (rotate(encoding, x, 3) != x).sum() == width


def test_positions_keep_rows_apart():
    encoding = rope(4)
    x_BLHK, positions_BL = jnp.ones((2, 2, 1, 4)), jnp.array([[0, 1], [5, 3]])
    turned_BLHK, _ = encoding.rotate(x_BLHK, x_BLHK, positions_BL, positions_BL)
    for b in range(2):
        for i in range(2):
            expected = rotate(encoding, np.ones(4), int(positions_BL[b, i]))
            np.testing.assert_allclose(turned_BLHK[b, i, 0], expected, atol=1e-6)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_angles_are_float32_at_far_positions(head_dim):
    """bfloat16 angles would make positions 65,535 and 65,536 one. The limit promised is 2e-3."""
    t, half = 65_535, head_dim // 2
    x = np.r_[np.ones(half), np.zeros(half)]
    angles = t * 10000.0 ** (-np.arange(half) / half)
    expected = np.r_[np.cos(angles), np.sin(angles)]
    np.testing.assert_allclose(rotate(rope(head_dim), x, t), expected, atol=5e-5)
    rounded = rotate(rope(head_dim), x, t, jnp.bfloat16)
    np.testing.assert_allclose(rounded, expected, atol=5e-5 + 2**-9)


def test_queries_and_keys_may_differ_in_heads():
    cfg: ModelConfig = model_config(num_kv_heads=1, **{"position.kind": "rope"})
    q_BLHK, k_BLGK = Rope(cfg, True).rotate(
        jnp.ones((1, 2, 4, 4)), jnp.ones((1, 2, 1, 4)), jnp.array([[0, 9]]), jnp.array([[10, 10]])
    )
    np.testing.assert_array_equal(q_BLHK, jnp.broadcast_to(k_BLGK, q_BLHK.shape))
