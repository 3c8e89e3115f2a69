"""Frozen parameters stay bit for bit as they were; the others train as if they were alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.models import abstract_params, build
from jaxformer.sharding import path_of
from jaxformer.training.freeze import check_frozen, hold
from tests.training import tiny

FROZEN = ("embedding/*", "layers/0/attention/*")


def is_frozen(keys) -> bool:
    return path_of(keys).startswith(("embedding/", "layers/0/attention/"))


def test_frozen_parameters_keep_every_bit():
    """Decay would shrink them, and moments would carry them on."""
    cfg = tiny.config(train__freeze=FROZEN, optimizer__weight_decay=0.5)
    program = tiny.program(cfg)
    before = jax.device_get(program.state.params)
    state, batch = program.state, tiny.batch()
    for _ in range(3):
        state, metrics = program.step(state, batch)
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(state.params))
    for (keys, leaf), old in zip(leaves, jax.tree.leaves(before), strict=True):
        assert np.array_equal(leaf, old) == is_frozen(keys), path_of(keys)
    assert metrics["grad_norm"] > 0


def test_the_norm_is_that_of_what_trains():
    free, held = (tiny.config(train__freeze=names) for names in ((), FROZEN))
    norms = []
    for cfg in (free, held):
        program = tiny.program(cfg)
        norms.append(float(program.step(program.state, tiny.batch())[1]["grad_norm"]))
    assert norms[1] < norms[0]


def test_hold_by_path():
    tree = {"a": {"b": jnp.ones(2)}, "c": jnp.ones(3)}
    held = hold(tree, ("a/*",))
    assert (held["a"]["b"].tolist(), held["c"].tolist()) == ([0, 0], [1, 1, 1])
    assert hold(tree, ()) is tree


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (("embeding/*",), r"train.freeze: 'embeding/\*' matches no parameter, paths are like"),
        (("*",), "train.freeze: matches every parameter"),
    ],
)
def test_patterns_that_cannot_be_meant(patterns, words):
    with pytest.raises(UserError, match=words):
        check_frozen(abstract_params(build(tiny.config().model)), patterns)


def test_an_empty_pattern():
    with pytest.raises(UserError, match=r"train.freeze: has an empty pattern"):
        tiny.config(train__freeze=("",))
