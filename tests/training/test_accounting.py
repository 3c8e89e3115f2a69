"""A batch gives the same update however it is cut: microbatches, devices, padding, smoothing."""

import contextlib
import itertools

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.config import MeshConfig
from jaxformer.models import build
from jaxformer.sharding import make_mesh, put_batch
from tests.training import tiny

ROWS = 32  # 8 devices × 4 microbatches
PARTS, MESHES, SMOOTHED = (1, 2, 4), ((1, 1), (8, 1), (2, 4)), (False, True)
SUMS = ("loss", "weight", "correct", "total", "grad_norm")


def padded(kind):
    """A batch of 32 ragged rows; row r is of microbatch r % parts and of device r // 4 of 8."""
    batch = tiny.batch(size=ROWS)
    kept = {
        "ragged": np.arange(ROWS) >= 0,
        "microbatch": np.arange(ROWS) % 4 != 1,  # one of four is all padding
        "device": np.arange(ROWS) // 4 != 3,  # one device of eight has only padding
        "most": np.arange(ROWS) == 5,  # one row is left
        "all": np.arange(ROWS) < 0,
    }[kind]
    return tiny.keep_rows(batch, kept)


KINDS = ("ragged", "microbatch", "device", "most", "all")


def config(parts, smoothed):
    extra = {"objective__label_smoothing": 0.1, "objective__z_loss": 1e-2} if smoothed else {}
    return tiny.config(
        train__num_microbatches=parts, train__batch_size=ROWS, **extra, **tiny.DROPOUT
    )


def updates(parts, sizes, smoothed, kinds):
    """(parameters after a step of plain SGD, sums, digest) for each kind of padding."""
    mesh = make_mesh(MeshConfig(*sizes)) if sizes != (1, 1) else None
    found = {}
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        program = tiny.program(config(parts, smoothed), mesh, sgd_norm=0.5, rate=0.5)
        for kind in kinds:
            state, metrics = program.step(program.state, put_batch(mesh, padded(kind)))
            values = jax.device_get(metrics)
            sums = np.array([values[name] for name in SUMS])
            found[kind] = jax.device_get(state.params), sums, values["data"]
    return found


def assert_same(found, expected):
    for kind, (params, sums, data) in found.items():
        np.testing.assert_allclose(sums, expected[kind][1], rtol=1e-5, atol=1e-7, err_msg=kind)
        np.testing.assert_array_equal(data, expected[kind][2])
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            params,
            expected[kind][0],
        )


@pytest.fixture(scope="module")
def whole():
    """One microbatch on one device."""
    return {smoothed: updates(1, (1, 1), smoothed, KINDS) for smoothed in SMOOTHED}


@pytest.mark.parametrize(("parts", "sizes", "smoothed"), [(4, (8, 1), False), (2, (2, 4), True)])
def test_any_split_is_one_update(parts, sizes, smoothed, whole):
    assert_same(updates(parts, sizes, smoothed, KINDS), whole[smoothed])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "sizes", "smoothed"), list(itertools.product(PARTS, MESHES, SMOOTHED))
)
def test_every_split_is_one_update(parts, sizes, smoothed, whole):
    assert_same(updates(parts, sizes, smoothed, KINDS), whole[smoothed])


def test_padding_is_nothing(whole):
    """All padding: nothing is divided by zero and no parameter moves."""
    for smoothed in SMOOTHED:
        params, sums, _ = whole[smoothed]["all"]
        np.testing.assert_array_equal(sums, 0)
        fresh = tiny.program(config(1, smoothed), sgd_norm=0.5, rate=0.5).state.params
        jax.tree.map(np.testing.assert_array_equal, params, fresh)


@pytest.mark.parametrize("kind", ["ragged", "most"])
def test_the_sums_in_numpy(kind):
    """Cross-entropy, smoothing over all classes and z-loss in float64 from the model's logits."""
    cfg = tiny.config(objective__label_smoothing=0.1, objective__z_loss=1e-2)
    program, batch = tiny.program(cfg), padded(kind)
    graphdef, _ = nnx.split(build(cfg.model))
    model = nnx.merge(graphdef, program.state.params)
    logits_BLV = model(batch["tokens"], batch["segment_ids"], batch["positions"]).logits
    logits_BLV = np.asarray(logits_BLV, np.float64)
    norm_BL = np.log(np.exp(logits_BLV).sum(-1))
    logp_BLV = logits_BLV - norm_BL[..., None]
    target_BL = np.take_along_axis(logp_BLV, batch["targets"][..., None], -1)[..., 0]
    weights_BL = batch["weights"].astype(np.float64)
    smoothed_BL = -0.9 * target_BL - 0.1 * logp_BLV.mean(-1) + 1e-2 * norm_BL**2
    expected = {
        "loss": (-target_BL * weights_BL).sum(),
        "weight": weights_BL.sum(),
        "correct": ((logits_BLV.argmax(-1) == batch["targets"]) * weights_BL).sum(),
        "total": (smoothed_BL * weights_BL).sum() / weights_BL.sum(),
    }
    _, metrics = program.step(program.state, batch)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
