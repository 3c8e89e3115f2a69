"""Activations by hand; the layer as a whole is in tests/models/test_oracle.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.feedforward import ACTIVATIONS, FeedForward
from tests.builders import make_model, model_config

VALUES = {  # at -1, 0, 0.5, 3
    "relu": [0, 0, 0.5, 3],
    "gelu": [-0.158808, 0, 0.345714, 2.996363],
    "gelu_exact": [-0.158655, 0, 0.345731, 2.995950],
    "silu": [-0.268941, 0, 0.311230, 2.857722],
}


@pytest.mark.parametrize("name", VALUES)
def test_activation_values(name):
    values = ACTIVATIONS[name](jnp.array([-1.0, 0.0, 0.5, 3.0]))
    np.testing.assert_allclose(values, VALUES[name], atol=2e-6)


def test_gelu_and_its_approximation_differ():
    assert ACTIVATIONS["gelu"](2.0) != ACTIVATIONS["gelu_exact"](2.0)


@pytest.mark.parametrize("activation", ["reglu", "geglu", "swiglu", "gelu"])
def test_only_gated_layers_have_a_gate(activation):
    layer = make_model(model_config(activation=activation)).layers[0].feed_forward
    assert isinstance(layer, FeedForward)
    assert (layer.gate is not None) == (activation != "gelu")
