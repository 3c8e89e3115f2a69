"""Bytes a device by kind, against products of shapes written out."""

import numpy as np
import pytest

from jaxformer.aot.memory import bytes_by_kind
from jaxformer.errors import UserError
from tests.training import tiny

# The tiny model with V = 16: table and head are one; LayerNorms have scale and bias.
D, F, V, L = 8, 32, 16, tiny.LENGTH
MATRICES = V * D + L * D + 4 * D * D + 2 * D * F  # cut by fsdp
VECTORS = 3 * D + D + F + D + 3 * 2 * D  # biases of q, k, v; o; up; down; three norms: whole


def kinds(**changes):
    cfg = tiny.config(model__vocab_size=V, mesh__data=-1, **changes)
    return bytes_by_kind(cfg, 8)


def test_every_kind_on_one_mesh():
    sizes, found = kinds(mesh__fsdp=4)
    assert (sizes.data, sizes.fsdp) == (2, 4)
    params = 4 * (MATRICES // 4 + VECTORS)
    assert found["parameters"] == found["gradients"] == params
    assert found["optimizer state"] == 2 * params + 4 + 0  # two moments and a count
    rows = 8 // 8  # a row a device: five arrays of L words, and its number
    assert found["batch"] == rows * (5 * L * 4 + 4)
    assert found["activations (estimate)"] > 0


def test_parameters_and_moments_fall_as_one_over_fsdp():
    whole, halves = kinds(mesh__fsdp=1)[1], kinds(mesh__fsdp=2)[1]
    saved = whole["parameters"] - halves["parameters"]
    assert saved == 4 * MATRICES // 2
    assert whole["optimizer state"] - halves["optimizer state"] == 2 * saved


def test_a_mesh_that_is_not_here_is_planned_all_the_same():
    cfg = tiny.config(model__vocab_size=V, mesh__data=64, mesh__fsdp=4, train__batch_size=256)
    sizes, found = bytes_by_kind(cfg, 1)
    assert (sizes.data, sizes.fsdp) == (64, 4)
    assert found["parameters"] == 4 * (MATRICES // 4 + VECTORS)


def test_activations_are_of_one_microbatch():
    one, four = (kinds(train__batch_size=64, train__num_microbatches=n)[1] for n in (1, 4))
    name = "activations (estimate)"
    assert np.isclose(one[name], 4 * four[name], rtol=1e-3)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"train.batch_size: 12 rows do not divide"):
        kinds(train__batch_size=12)
