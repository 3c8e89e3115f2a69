import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec as P

from jaxformer import sharding
from jaxformer.config import MeshConfig
from jaxformer.errors import UserError
from jaxformer.models import init
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state
from tests.training import tiny


@pytest.mark.parametrize(
    ("data", "fsdp", "shape"),
    [(-1, 1, (8, 1)), (2, 4, (2, 4)), (-1, 4, (2, 4)), (2, -1, (2, 4)), (1, 1, None)],
)
def test_mesh_shapes(data, fsdp, shape):
    mesh = sharding.make_mesh(MeshConfig(data, fsdp))
    assert (mesh and tuple(mesh.shape.values())) == shape


@pytest.mark.parametrize(
    ("data", "fsdp", "numbers"),
    [(3, -1, "3 does not divide the 8"), (2, 2, "2 × 2 but there are 8")],
)
def test_mesh_that_does_not_fit_is_refused_with_the_numbers(data, fsdp, numbers):
    with pytest.raises(UserError, match=numbers):
        sharding.make_mesh(MeshConfig(data, fsdp))


@pytest.mark.parametrize(
    ("logical", "spec"),
    [
        (("vocab", "embed"), P(None, "fsdp")),
        (("layers", "heads", "embed"), P(None, None, "fsdp")),
        (("batch", "length", None), P(("data", "fsdp"), None, None)),
        (("batch", "length", "embed"), P(("data", "fsdp"), None, None)),
    ],
)
def test_logical_axes_become_mesh_axes(logical, spec):
    assert sharding.partition(*logical) == spec


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"tie_embeddings": False, "head_bias": True, "activation": "swiglu"}]
)
def test_table_places_every_parameter(scan_layers, changes):
    """Every matrix is cut along d_model, the only dimension of size 8; every vector is whole."""
    changes = {f"model__{name}": value for name, value in changes.items()}
    cfg = tiny.config(model__scan_layers=scan_layers, model__d_ff=24, **changes).model
    mesh = sharding.make_mesh(MeshConfig(2, 4))
    params = jax.eval_shape(lambda: init(cfg, jax.random.key(0)))
    placed = sharding.params_shardings(mesh, params)
    specs = {sharding.path_of(k): s.spec for k, s in jax.tree_util.tree_leaves_with_path(placed)}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = sharding.path_of(keys)
        spec = specs[path]
        matrix = path.endswith(("kernel", "table"))
        assert [a for a in spec if a] == (["fsdp"] if matrix else []), path
        if matrix:
            assert leaf.shape[list(spec).index("fsdp")] == 8


def test_unknown_parameter_and_wrong_rank_are_refused():
    with pytest.raises(ValueError, match="no row of PARAMETERS"):
        sharding.logical_axes("layers/0/attention/gate/matrix", 2)
    with pytest.raises(ValueError, match="rank 3"):
        sharding.logical_axes("layers/0/attention/query/kernel", 3)


def test_dimension_that_does_not_divide_is_refused_with_the_numbers():
    params = jax.eval_shape(lambda: init(tiny.config(model__d_model=6).model, jax.random.key(0)))
    mesh = sharding.make_mesh(MeshConfig(2, 4))
    with pytest.raises(UserError, match=r"mesh.fsdp: 4 does not divide the dimension 6 of .*table"):
        sharding.params_shardings(mesh, params)


def test_batch_must_spread_evenly():
    mesh = sharding.make_mesh(MeshConfig(8, 1))
    sharding.check_batch(mesh, "train.batch_size", 16, 2)
    sharding.check_batch(None, "train.batch_size", 3, 3)
    with pytest.raises(UserError, match=r"8 devices .* × 2 microbatches, use a multiple of 16"):
        sharding.check_batch(mesh, "train.batch_size", 8, 2)


def test_shards_of_state_are_really_smaller():
    program = tiny.program(tiny.config(), sharding.make_mesh(MeshConfig(2, 4)))
    for leaf in (
        program.state.params["embedding"]["table"],
        program.state.params["layers"][0]["attention"]["output"]["kernel"],
        *[x for x in jax.tree.leaves(program.state.opt_state) if x.shape == (tiny.VOCAB, 8)],
    ):
        assert leaf.addressable_shards[0].data.size * 4 == leaf.size
    moments = [x for x in jax.tree.leaves(program.state.opt_state) if x.ndim == 2]
    assert len(moments) == 2 * len(
        [x for x in jax.tree.leaves(program.state.params) if x.ndim == 2]
    )
    assert all(x.addressable_shards[0].data.size * 4 == x.size for x in moments)


@contextlib.contextmanager
def no_compile_cache():
    """XLA warns while it compiles: a program out of the cache is silent."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


@pytest.mark.parametrize(
    ("data", "fsdp", "scan_layers"), [(8, 1, False), (2, 4, False), (2, 4, True)]
)
def test_losses_on_a_mesh_equal_one_device(data, fsdp, scan_layers, capfd):
    """Also: XLA never falls back to gathering whole activations."""
    cfg = tiny.config(
        train__batch_size=16,
        train__num_microbatches=2,
        model__scan_layers=scan_layers,
        model__dropout__residual=0.3,
    )
    alone, mesh = tiny.program(cfg), sharding.make_mesh(MeshConfig(data, fsdp))
    assert mesh is not None
    expected, found = [], []
    state = alone.state
    for step in range(4):
        state, metrics = alone.step(state, tiny.batch(step, 16))
        expected.append(metrics["loss"] / metrics["weight"])
    with jax.set_mesh(mesh):
        spread = tiny.program(cfg, mesh)
        jax.tree.map(np.testing.assert_array_equal, spread.state, alone.state)
        state = spread.state
        for step in range(4):
            with no_compile_cache():
                batch = sharding.put_batch(mesh, tiny.batch(step, 16))
                state, metrics = spread.step(state, batch)
            found.append(metrics["loss"] / metrics["weight"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert spread.step._cache_size() == 1
    assert "rematerialization" not in capfd.readouterr().err
    for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(spread.abstract), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)


def test_without_a_mesh_nothing_is_constrained():
    x = jnp.ones((3, 2))
    assert sharding.constrain(x, "batch", None) is x
    assert sharding.replicate(x) is x
    cfg = tiny.config()
    tx, _ = make_optimizer(cfg)
    state = abstract_state(lambda: init(cfg.model, jax.random.key(0)), tx, None)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state)} == {1}


def test_each_process_has_one_slice_of_the_batch():
    """Wherever the machine's topology would put its devices."""
    devices = np.array([SimpleNamespace(id=n, process_index=n % 2) for n in range(8)])
    ordered = sharding.by_process(devices.reshape(4, 2))
    assert [device.id for device in ordered.flat] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert ordered.shape == (4, 2)
