"""Hard-ALiBi: windows of 1, 2, … tokens in half of the heads, nothing in the others."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.positions import HardAlibi
from tests.builders import model_config


def allowed(ids, heads=4, causal=True, **changes):
    changes |= {"position.kind": "hard_alibi", "num_heads": heads, "d_model": 4 * heads}
    at = jnp.array([ids])
    return np.asarray(HardAlibi(model_config(**changes), causal).allow(at, at))[0]


def test_windows_of_half_of_the_heads():
    """Head 1 sees itself, head 2 one more, heads 3 and 4 all; causality is the mask's."""
    first, second, *rest = allowed([0, 1, 2, 5])
    np.testing.assert_array_equal(first, np.eye(4, dtype=bool))
    near = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]  # id 5 is far from id 2
    np.testing.assert_array_equal(second, np.array(near, bool))
    assert all(head.all() for head in rest)


def test_the_number_of_windows_can_be_told():
    of_five = allowed(range(6), 5)
    assert [head.all() for head in of_five] == [False, False, True, True, True]
    of_all = allowed(range(6), 3, **{"position.hard_alibi.heads": 3})
    assert [int(head[5].sum()) for head in of_all] == [1, 2, 3]


@pytest.mark.parametrize(
    ("heads", "told", "words"), [(4, 5, "more than"), (1, 0, "no half"), (4, -1, "0 or more")]
)
def test_heads_that_there_are_not(heads, told, words):
    with pytest.raises(UserError, match=words):
        allowed([0, 1], heads, **{"position.hard_alibi.heads": told})
