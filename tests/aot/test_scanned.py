"""A scanned layer counts as often as it runs: programs of the compiler, on 8 fake devices."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxformer.aot.hlo import Program
from jaxformer.aot.memory import abstract_batch
from jaxformer.mesh import make_mesh
from jaxformer.models import build, init
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state
from jaxformer.training.step import jit_train_step
from tests.training import tiny


def collectives(**changes):
    """Of the tiny model's step on 8 fake devices: kind → bytes."""
    cfg = tiny.config(model__num_layers=3, model__remat="full", **changes)
    mesh = make_mesh(cfg.mesh)
    graphdef, _ = nnx.split(build(cfg.model))
    tx, schedule = make_optimizer(cfg)
    state = abstract_state(lambda: init(cfg.model, jax.random.key(0)), tx, mesh)
    step = jit_train_step(graphdef, tx, schedule, cfg, state, mesh)
    with jax.set_mesh(mesh):
        program = Program(step.lower(state, abstract_batch(cfg, mesh)).compile().as_text())
    return {one.kind: one.bytes for one in program.collectives()}


@pytest.mark.usefixtures("no_compile_cache")
@pytest.mark.parametrize(
    ("mesh", "scalars"), [({"mesh__data": 8}, 0), ({"mesh__data": 2, "mesh__fsdp": 4}, 24)]
)
def test_a_scanned_step_moves_as_much_as_an_unrolled_one(mesh, scalars):
    """To the byte, but each cut kernel adds a scalar to two norms of the gradient, that which is
    told and that which clips: 6 a layer, and 6 of three layers that are one stack."""
    unrolled, scanned = (collectives(model__scan_layers=scan, **mesh) for scan in (False, True))
    assert sum(unrolled.values()) > 0
    unrolled["all-reduce"] -= 4 * scalars
    assert scanned == unrolled


def test_a_scanned_product_counts_as_often_as_it_runs():
    """Against the sizes of the arrays, on real text of the compiler."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    put = lambda *spec: jax.NamedSharding(mesh, jax.P(*spec))  # noqa: E731

    def run(w_NDD, x_BD):
        body = lambda x, w: (jax.lax.with_sharding_constraint(x @ w, put()), None)  # noqa: E731
        return jax.lax.scan(body, x_BD, w_NDD)[0]

    w = jax.ShapeDtypeStruct((5, 64, 64), jnp.float32, sharding=put(None, "x", None))
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=put())
    found = Program(jax.jit(run).lower(w, x).compile().as_text()).collectives()
    product, weights = 16 * 64 * 4, 64 * 64 * 4  # either is what the compiler may move
    assert sum(one.bytes for one in found) in (5 * product, 5 * weights)
