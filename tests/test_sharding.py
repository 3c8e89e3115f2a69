import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxformer import sharding
from jaxformer.config import MeshConfig
from jaxformer.errors import UserError
from jaxformer.losses import accuracy, cross_entropy
from jaxformer.models import build, init
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state, initialise
from tests.builders import without_compile_cache
from tests.training import tiny


@pytest.mark.parametrize(
    ("logical", "spec"),
    [
        (("vocab", "embed"), P("tensor", "fsdp")),
        (("layers", "heads", "embed"), P(None, "tensor", "fsdp")),
        (("batch", "length", None), P(("data", "fsdp", "expert"), "context", None)),
        (("batch", "length", "embed"), P(("data", "fsdp", "expert"), "context", None)),
        (("batch", "heads", None), P(("data", "fsdp", "expert"), "tensor", None)),
        (("expert_rows", "experts", None), P(("data", "fsdp"), "expert", None)),
        (("experts", "embed", "ff"), P("expert", "fsdp", "tensor")),
    ],
)
def test_logical_axes_become_mesh_axes(logical, spec):
    assert sharding.partition(*logical) == spec


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"tie_embeddings": False, "head_bias": True, "activation": "swiglu"}]
)
def test_table_places_every_parameter(scan_layers, changes):
    """Every matrix is cut along d_model, the only dimension of size 8, and the other one by two,
    but positions are no vocabulary; every vector is whole."""
    changes = {f"model__{name}": value for name, value in changes.items()}
    changes |= {"model__head_dim": 6, "model__scan_layers": scan_layers}
    cfg = tiny.config(model__d_ff=24, **changes).model
    mesh = sharding.make_mesh(MeshConfig(1, 4, 2))
    params = jax.eval_shape(lambda: sharding.pad(mesh, init(cfg, jax.random.key(0))))
    placed = sharding.params_shardings(mesh, params)
    specs = {sharding.path_of(k): s.spec for k, s in jax.tree_util.tree_leaves_with_path(placed)}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = sharding.path_of(keys)
        cut = {axis: size for axis, size in zip(specs[path], leaf.shape, strict=True) if axis}
        if not path.endswith(("kernel", "table")):
            assert not cut, path
        elif path.startswith("position"):
            assert cut == {"fsdp": 8}, path
        else:
            assert cut.keys() == {"fsdp", "tensor"}, path
            assert cut["fsdp"] == 8, path
            assert cut["tensor"] in (12, 24), path  # two heads of 6, d_ff, 11 tokens and a row


@pytest.mark.parametrize("scan_layers", [False, True])
def test_experts_are_cut_by_expert_width_and_hidden_width(scan_layers):
    moe = {"model__moe__num_experts": 6, "model__moe__d_ff": 20, "model__moe__shared_d_ff": 12}
    cfg = tiny.config(model__scan_layers=scan_layers, model__activation="swiglu", **moe).model
    mesh = sharding.make_mesh(MeshConfig(1, 2, 2, 1, 2))
    params = jax.eval_shape(lambda: init(cfg, jax.random.key(0)))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    shapes = {sharding.path_of(k): x.shape for k, x in leaves}
    placed = jax.tree_util.tree_leaves_with_path(sharding.params_shardings(mesh, params))
    for keys, place in placed:
        path = sharding.path_of(keys)
        if "/feed_forward/" not in path:
            continue
        here = place.shard_shape(shapes[path])[scan_layers:]
        whole = shapes[path][scan_layers:]
        pieces = [a // b for a, b in zip(whole, here, strict=True)]
        of_one = {"kernel": [2, 2], "bias": [1]}[path.rpartition("/")[2]]
        if "/router/" in path:
            assert pieces == [2, 1], path
        else:
            assert pieces == ([2, *of_one] if "/experts/" in path else of_one), path


def test_a_vocabulary_that_does_not_divide_is_padded_in_training_and_whole_in_checkpoints():
    cfg = tiny.config(model__tie_embeddings=False)
    mesh = sharding.make_mesh(MeshConfig(1, 2, 4))
    make = lambda: init(cfg.model, jax.random.key(0))  # noqa: E731
    tx, _ = make_optimizer(cfg)
    stored = abstract_state(make, tx, mesh, padded=False)
    live = abstract_state(make, tx, mesh)
    for state, rows, spec in ((stored, 11, P(None, ("fsdp", "tensor"))), (live, 12, None)):
        for tree in (state.params, optax.tree.get(state.opt_state, "mu")):
            table, kernel = tree["embedding"]["table"], tree["head"]["kernel"]
            assert (table.shape, kernel.shape) == ((rows, 8), (8, rows))
            assert table.sharding.spec == (spec or P("tensor", "fsdp"))
            assert kernel.sharding.spec == (P(*reversed(spec)) if spec else P("fsdp", "tensor"))
    state = initialise(make, tx, live)
    jax.tree.map(np.testing.assert_array_equal, sharding.resized(state, stored).params, make())
    assert not state.params["embedding"]["table"][11:].any()
    back = sharding.resized(sharding.resized(state, stored), live)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    for leaf, wanted in zip(jax.tree.leaves(back), jax.tree.leaves(live), strict=True):
        assert leaf.sharding == wanted.sharding


def test_a_padded_table_and_head_are_those_of_the_vocabulary():
    """Whatever stands behind it; an id of the padding is no word."""
    cfg = tiny.config(model__tie_embeddings=False, model__head_bias=True).model
    mesh = sharding.make_mesh(MeshConfig(1, 2, 4))
    graphdef, _ = nnx.split(build(cfg))
    params = init(cfg, jax.random.key(0))
    padded = sharding.pad(mesh, params)
    for name, part in (("embedding", "table"), ("head", "kernel")):
        behind = np.array(padded[name][part])
        behind[tuple(slice(n, None) for n in np.where(np.equal(behind.shape, 12), 11, 0))] = 1e3
        padded[name][part] = jnp.asarray(behind)
    tokens = tiny.batch()["tokens"]
    found = [nnx.merge(graphdef, tree)(tokens).logits for tree in (params, padded)]
    np.testing.assert_array_equal(*found)
    assert found[0].shape[-1] == 11
    for tree in (params, padded):
        assert np.isnan(nnx.merge(graphdef, tree).embedding(np.array([[11]]))).all()


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


def test_no_device_gathers_the_logits_of_a_padded_vocabulary():
    """4,099 tokens on two devices: losses, their gradients and accuracy."""
    cfg = tiny.config(model__vocab_size=4099, model__tie_embeddings=False).model
    mesh = sharding.make_mesh(MeshConfig(2, 2, 2))
    assert mesh is not None
    graphdef, _ = nnx.split(build(cfg))
    shapes = jax.eval_shape(lambda: sharding.pad(mesh, init(cfg, jax.random.key(0))))
    rows = sharding.batch_sharding(mesh)

    def place(leaf, where):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    params = jax.tree.map(place, shapes, sharding.params_shardings(mesh, shapes))
    hidden = jax.ShapeDtypeStruct((4, 16, 8), jnp.float32, sharding=rows)
    targets = jax.ShapeDtypeStruct((4, 16), jnp.int32, sharding=rows)

    def sums(params, hidden, targets):
        logits = nnx.merge(graphdef, params).readout(hidden)
        ones = jnp.ones(targets.shape)
        return cross_entropy(logits, targets, ones)[0], accuracy(logits, targets, ones)[0]

    with jax.set_mesh(mesh):
        gradients = jax.jit(jax.value_and_grad(sums, has_aux=True))
        text = gradients.lower(params, hidden, targets).compile().as_text()
    moved = re.findall(r"= \w+\[([\d,]*)\]\S* (?:all-\w+|collective-permute)\(", text)
    sizes = [np.prod([int(n) for n in shape.split(",") if n], initial=1) for shape in moved]
    assert 8 * 2050 in sizes  # the head, gathered over fsdp
    assert max(sizes) < 16 * 2050  # the logits of a device


def matrices(tree):
    """Bytes of kernels and tables: in all, and on the first device."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim >= 2]
    return sum(x.nbytes for x in leaves), sum(x.addressable_shards[0].data.nbytes for x in leaves)


@pytest.mark.parametrize("sizes", [(2, 4, 1), (2, 2, 2), (1, 1, 8), (1, 2, 4)])
def test_bytes_a_device_fall_with_fsdp_times_tensor(sizes):
    cfg = tiny.config(
        model__num_heads=8, model__d_model=16, model__vocab_size=16, model__position__kind="rope"
    )
    state = tiny.program(cfg, sharding.make_mesh(MeshConfig(*sizes))).state
    for tree in (state.params, state.opt_state):
        whole, here = matrices(tree)
        assert here * sizes[1] * sizes[2] == whole > 0
    parameters, moments = matrices(state.params)[0], matrices(state.opt_state)[0]
    assert moments == 2 * parameters


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
            with without_compile_cache():
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
