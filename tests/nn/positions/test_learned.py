"""The learned table and the encoding `none`."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.nn.positions import ENCODINGS, Learned, PositionEncoding
from tests.builders import model_config


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
