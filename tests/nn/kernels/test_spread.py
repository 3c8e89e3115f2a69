"""Kernels on a mesh: every device takes its own rows and heads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import sharding
from jaxformer.config import MeshConfig
from jaxformer.nn.kernels import blockwise, splash
from jaxformer.nn.kernels.spread import spread
from jaxformer.nn.positions.alibi import Alibi
from tests.builders import model_config
from tests.nn.kernels.cases import RAGGED, Case, assert_close, by_reference, ids, oracle, weighted

CASE = Case((*RAGGED, ids(30, -7)), softcap=2.0, sink=True, groups=2)
small = functools.partial(blockwise.attend, chunk=8, block=16)


@pytest.mark.parametrize(
    ("data", "heads", "biased"), [(2, 4, False), (4, 2, False), (4, 2, True), (8, 1, True)]
)
def test_the_same_numbers_on_eight_devices(monkeypatch, data, heads, biased):
    """Four rows over 2, 4 or 8 (which does not divide); two groups of heads over 4, 2 or 1."""
    monkeypatch.setitem(sharding.MESH_AXES, "batch", ("data",))
    monkeypatch.setitem(sharding.MESH_AXES, "heads", ("fsdp",))
    encoding = Alibi(model_config(), True) if biased else None
    mesh = sharding.make_mesh(MeshConfig(data, heads))
    expected, seen = weighted(by_reference, CASE, encoding=encoding), set()

    def kernel(q, *rest):
        seen.add(q.shape[2])
        return small(q, *rest)

    with jax.set_mesh(mesh):
        found = weighted(functools.partial(spread, kernel), CASE, encoding=encoding)
    assert_close(found, expected)
    assert seen == {4 if biased else 4 // heads}  # heads on a device, also where groups are fewer


def test_queries_cut_along_the_length(monkeypatch):
    monkeypatch.setitem(sharding.MESH_AXES, "batch", ("data",))
    monkeypatch.setitem(sharding.MESH_AXES, "length", ("fsdp",))
    case = dataclasses.replace(CASE, rows=(ids(40), ids(-3, 30, 7), ids(14, 26), ids(39, -1)))
    seen = []

    def kernel(q, k, v, rule):
        seen.append((q.shape, k.shape, rule.visibility.q_order_BL.shape))
        return small(q, k, v, rule)

    with jax.set_mesh(sharding.make_mesh(MeshConfig(2, 4))):
        found = weighted(functools.partial(spread, kernel), case)
    assert set(seen) == {((2, 10, 4, 8), (2, 40, 2, 8), (2, 10))}
    assert_close(found, oracle(case))


def test_splash_on_queries_cut_along_the_length(monkeypatch):
    """256 queries on two devices of 128, which have to know their places."""
    monkeypatch.setitem(sharding.MESH_AXES, "batch", ())
    monkeypatch.setitem(sharding.MESH_AXES, "length", ("fsdp",))
    case, seen = Case((ids(150, 100, -6),), window=140, groups=2), []
    prepare = functools.partial(splash.prepare, interpret=True)

    def kernel(q, *rest):
        seen.append(q.shape)
        return splash.attend(q, *rest)

    run = functools.partial(spread, kernel, step=128, prepare=prepare)
    with jax.set_mesh(sharding.make_mesh(MeshConfig(4, 2))):
        found = weighted(run, case)
    assert set(seen) == {(1, 128, 4, 8)}
    assert_close(found, oracle(case))


def test_no_device_has_rows_of_another():
    """Compiled for two devices, there is no message between them in the forward pass."""
    mesh = sharding.make_mesh(MeshConfig(8, 1))
    rows = sharding.batch_sharding(mesh)
    case = dataclasses.replace(CASE, rows=(ids(37),) * 8, sink=False)
    arrays = [jax.device_put(x, rows) for x in case.arrays()]
    with jax.set_mesh(mesh):
        spread_out, plain = (
            jax.jit(lambda *x, f=f: f(*x, case.rule())).lower(*arrays).compile().as_text()
            for f in (functools.partial(spread, small), small)
        )
    assert "all-gather" in plain or "all-reduce" in plain
    assert not any(word in spread_out for word in ("all-gather", "all-reduce", "permute("))


def test_without_a_mesh_it_is_the_kernel_itself():
    q, k, v = (jnp.ones((2, 3, 1, 1)),) * 3
    assert spread(lambda *call: call, q, k, v, "rule") == (q, k, v, "rule")
    np.testing.assert_array_equal(q, 1)
