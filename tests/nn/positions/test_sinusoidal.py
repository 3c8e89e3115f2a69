"""Sinusoidal encodings; worked values of Vaswani et al. 2017 §3.5."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.positions import Sinusoidal
from tests.builders import model_config


def table(d_model, positions, **section):
    section = {f"position.sinusoidal.{name}": value for name, value in section.items()}
    cfg = model_config(d_model=d_model, **{"position.kind": "sinusoidal"}, **section)
    return np.asarray(Sinusoidal(cfg, True).table(jnp.asarray([positions])))[0]


INTERLEAVED = [0.14112, -0.989992, 0.29552, 0.955336, 0.029996, 0.99955, 0.003, 0.999996]


def test_width_8_position_3():
    np.testing.assert_allclose(table(8, [3]), [INTERLEAVED], atol=1e-6)
    concatenated = INTERLEAVED[0::2] + INTERLEAVED[1::2]
    np.testing.assert_allclose(table(8, [3], layout="concatenated"), [concatenated], atol=1e-6)


def test_base():
    angles = np.array([5.0, 0.5])
    expected = np.stack([np.sin(angles), np.cos(angles)], 1).reshape(1, 4)
    np.testing.assert_allclose(table(4, [5], base=100.0), expected, atol=1e-6)


def test_embedding_adds_the_scaled_table():
    changes = {"position.kind": "sinusoidal", "position.sinusoidal.scale": 0.25}
    encoding = Sinusoidal(model_config(d_model=8, num_heads=2, **changes), True)
    x_BLD = jnp.ones((1, 1, 8))
    sum_BLD = encoding.embed(x_BLD, jnp.array([[3]]))
    np.testing.assert_allclose(sum_BLD[0], 1 + 0.25 * np.array([INTERLEAVED]), atol=1e-6)


@pytest.mark.parametrize("position", [65_535])
def test_far_positions_are_exact(position):
    angles = position * 10000.0 ** (-np.arange(0, 64, 2) / 64)
    expected = np.stack([np.sin(angles), np.cos(angles)], 1).reshape(1, 64)
    np.testing.assert_allclose(table(64, [position]), expected, atol=5e-5)
