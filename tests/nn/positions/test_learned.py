"""The learned table and the encoding `none`."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn.positions import ENCODINGS, Learned, PositionEncoding
from tests.builders import apply, model_config, random_params


def test_rows_of_the_table_are_added():
    cfg = model_config(d_model=4, max_length=3, **{"position.kind": "learned"})
    table_VD = jnp.arange(12.0).reshape(3, 4)
    encoding = nnx.merge(nnx.split(Learned(cfg, True))[0], {"table": table_VD})
    sum_BLD = encoding.embed(jnp.ones((1, 5, 4)), jnp.array([[2, 0, 1, 3, -1]]))
    np.testing.assert_array_equal(sum_BLD[0, :3], 1 + np.asarray(table_VD)[[2, 0, 1]])
    assert np.isnan(sum_BLD[0, 3:]).all()


def test_none_changes_nothing():
    encoding = ENCODINGS["none"](model_config(), True)
    assert type(encoding) is PositionEncoding
    x, positions_BL = jnp.ones((1, 2, 4)), jnp.array([[0, 1]])
    assert encoding.embed(x, positions_BL) is x
    assert encoding.rotate(x, x, positions_BL, positions_BL + 1) == (x, x)
    assert encoding.bias(positions_BL, positions_BL) is None
    assert encoding.allow(positions_BL, positions_BL) is None


@pytest.mark.parametrize("kind", ["none", "rope"])
def test_one_layer_without_positions_sees_a_bag_of_words(kind):
    """The last token's state stays when the tokens before it change places."""
    cfg = model_config(num_layers=1, **{"position.kind": kind})
    tokens_BL = np.array([[3, 14, 15, 9, 26, 5], [9, 3, 26, 15, 14, 5]], np.int32)
    first, second = np.asarray(apply(cfg, random_params(cfg), tokens_BL).hidden)[:, -1]
    assert (np.abs(first - second).max() < 1e-5) == (kind == "none")
