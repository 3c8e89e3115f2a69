"""Muon against NumPy in float64; stacked kernels are many matrices; the same on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from jaxformer.config import MeshConfig
from jaxformer.mesh import make_mesh
from jaxformer.models import init
from jaxformer.sharding import path_of
from jaxformer.training.muon import MATRIX, muon_labels
from jaxformer.training.optim import make_optimizer
from tests.training import tiny

MUON = {"optimizer__kind": "muon", "optimizer__clip_norm": 0.0}
RNG = np.random.default_rng(0)


def newton_schulz(matrix, steps=5):
    """The quintic iteration of Jordan et al. 2024 on X / |X|, wide side to the right."""
    x = np.asarray(matrix, np.float64)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / np.sqrt((x**2).sum())
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if is_tall else x


def kernels(**shapes):
    return {"layers": {"0": {n: {"kernel": jnp.asarray(x)} for n, x in shapes.items()}}}


@pytest.mark.parametrize("rms", [0.0, 0.2])
def test_two_updates_by_hand(rms):
    """Decay and the rate are AdamW's elsewhere; momentum .9 with Nesterov's step ahead."""
    cfg = tiny.config(
        **MUON,
        optimizer__muon__rate=3.0,
        optimizer__muon__momentum=0.9,
        optimizer__muon__weight_decay=0.5,
        optimizer__muon__rms=rms,
        optimizer__weight_decay=0.25,
    )
    tx, _ = make_optimizer(cfg)
    shapes = {"wide": (4, 6), "tall": (6, 3)}
    values = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    params = kernels(**values) | {"head": {"kernel": jnp.full((2, 3), 2.0)}}
    state, momentum = tx.init(params), {name: np.zeros(shape) for name, shape in shapes.items()}
    for step in (1, 2):
        slopes = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
        gradient = kernels(**slopes) | {"head": {"kernel": jnp.ones((2, 3))}}
        updates, state = jax.jit(tx.update)(gradient, state, params)
        for name, (n_in, n_out) in shapes.items():
            momentum[name] = 0.9 * momentum[name] + 0.1 * slopes[name]
            ahead = 0.9 * momentum[name] / (1 - 0.9 ** (step + 1))
            ahead = ahead + 0.1 * slopes[name] / (1 - 0.9**step)
            size = 0.2 * np.sqrt(max(n_in, n_out)) if rms else np.sqrt(max(1, n_out / n_in))
            expected = -3.0 * (size * newton_schulz(ahead) + 0.5 * values[name])
            found = updates["layers"]["0"][name]["kernel"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(updates["head"]["kernel"], -(1 + 0.25 * 2), rtol=1e-5)


def test_the_first_update_is_nearly_orthogonal_whatever_the_gradient():
    """Singular values lie where Jordan's coefficients put them, near 1 and not at it."""
    matrix = RNG.normal(size=(16, 16)) @ np.diag(np.logspace(0, -1, 16))
    values = np.linalg.svd(newton_schulz(matrix), compute_uv=False)
    assert 0.6 < values.min() < values.max() < 1.3
    tx, _ = make_optimizer(tiny.config(**MUON, optimizer__muon__weight_decay=0.0))
    params = kernels(query=np.zeros((16, 16)))
    for scale in (1e-6, 1.0, 1e6):
        updates, _ = tx.update(kernels(query=scale * matrix), tx.init(params), params)
        found = np.asarray(updates["layers"]["0"]["query"]["kernel"])
        # a gradient of 1e-6 is not small beside the epsilon of its norm
        np.testing.assert_allclose(found, -10 * newton_schulz(matrix), atol=0.05)


@pytest.mark.parametrize("leading", [(3,), (2, 3)], ids=["layers", "layers and experts"])
def test_a_stack_is_its_matrices(leading):
    tx, _ = make_optimizer(tiny.config(**MUON))
    update = jax.jit(tx.update)
    values, slopes = RNG.normal(size=(2, *leading, 4, 6)).astype(np.float32)

    def of(value):
        return {"layers": {"experts": {"kernel": jnp.asarray(value)}}}

    params = of(values)
    updates, state = update(of(slopes), tx.init(params), params)
    updates, _ = update(of(slopes[::-1]), state, params)
    for place in np.ndindex(*leading):
        params = of(values[place])
        one, state = update(of(slopes[place]), tx.init(params), params)
        one, _ = update(of(slopes[::-1][place]), state, params)
        stacked = updates["layers"]["experts"]["kernel"][place]
        np.testing.assert_array_equal(stacked, one["layers"]["experts"]["kernel"])


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder", "lstm", "classifier"])
def test_only_kernels_of_layers_are_matrices(kind, scan_layers):
    changes = {
        "decoder": {"model__position__kind": "fire", "model__tie_embeddings": False},
        "encoder_decoder": tiny.SEQ2SEQ | {"model__position__kind": "t5"},
        "lstm": {
            "model__architecture": "lstm",
            "model__position__kind": "none",
            "model__num_heads": 4,
        },
        "classifier": {
            "model__architecture": "encoder",
            "objective__kind": "masked_lm",
            "model__head__transform": True,
            "data__source": "text",
            "data__path": "a",
        },
    }[kind]
    if kind == "lstm" and scan_layers:
        pytest.skip("its layers are not scanned")
    cfg = tiny.config(**changes, model__scan_layers=scan_layers)
    params = jax.eval_shape(lambda: init(cfg.model, jax.random.key(0)))
    for keys, label in jax.tree_util.tree_leaves_with_path(muon_labels(params)):
        path = path_of(keys)
        is_matrix = "layers/" in path and path.endswith("kernel")
        assert label == ("muon" if is_matrix else "adamw"), path
    assert not MATRIX.fullmatch("layers/1/feed_forward/router/kernel")
    assert MATRIX.fullmatch("layers/feed_forward/experts/up/kernel")


def test_a_mesh_makes_the_updates_of_one_device():
    cfg = tiny.config(**MUON, model__num_heads=4, model__scan_layers=True, model__num_layers=2)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, expert=1, context=1, tensor=2))
    alone, spread = tiny.program(cfg), tiny.program(cfg, mesh)
    of_muon = optax.tree.get(spread.abstract.opt_state, "MuonState")
    moment = of_muon.mu["layers"]["attention"]["query"]
    assert moment["kernel"].sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    one, cut = alone.state, spread.state
    for step in range(2):
        batch = tiny.batch(step)
        one, of_one = alone.step(one, batch)
        with jax.set_mesh(mesh):
            cut, of_cut = spread.step(cut, batch)
        np.testing.assert_allclose(of_cut["grad_norm"], of_one["grad_norm"], rtol=1e-4)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(cut.params), strict=True):
        np.testing.assert_allclose(np.asarray(b)[tuple(map(slice, a.shape))], a, atol=2e-4)
