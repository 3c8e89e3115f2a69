"""Attention in chunks of queries: the reference's numbers without what the mask forbids."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import kernels, masks
from jaxformer.nn.kernels import chunked
from tests.builders import apply, make_model, model_config, random_params
from tests.nn.kernels.cases import CASES, GAPS, Case, assert_close, by_reference, oracle, weighted

small = functools.partial(chunked.attend, chunk=8)
LOOKING_BACK = ("causal", "documents", "window")


def by_name(name):
    return lambda *call: kernels.attend(name, *call)[0]


@pytest.mark.parametrize("chunk", [8, 30, 100])
@pytest.mark.parametrize("name", LOOKING_BACK)
def test_outputs_and_gradients_are_those_of_the_formulas(name, chunk):
    """37 tokens in 5 chunks, in 2 (24 and 13), and at once."""
    kernel = functools.partial(chunked.attend, chunk=chunk)
    assert_close(weighted(kernel, CASES[name]), oracle(CASES[name]))


@pytest.mark.parametrize("kernel", ["reference", "chunked"])
@pytest.mark.parametrize("name", CASES)
def test_places_in_the_row_decide_as_orders_do(name, kernel):
    """By name each call goes through `masks.by_place`; what chunks cannot the reference does."""
    assert_close(weighted(by_name(kernel), CASES[name]), oracle(CASES[name]))


def test_places_are_taken_only_where_they_decide_alike():
    seen = {}
    for name, case in (CASES | {"gaps": Case(tuple(GAPS))}).items():
        view = case.rule().visibility
        other = masks.by_place(view)
        seen[name] = other is not view
        pair = (np.asarray(masks.attention_mask(v)) for v in (view, other))
        np.testing.assert_array_equal(*pair, err_msg=name)
    assert {name for name, changed in seen.items() if changed} == {
        "causal",
        "documents",
        "prefix",
        "gaps",
    }


@pytest.mark.parametrize("kind", ["alibi", "t5", "fire", "hard_alibi", "sandwich"])
def test_biases_and_gradients_of_what_they_train(kind):
    cfg = model_config(**{"position.kind": kind})
    encoding, params = make_model(cfg).position[kind], random_params(cfg)
    graphdef, _ = nnx.split(encoding)
    trained = params.get("position", {}).get(kind, {})
    case = Case(tuple(GAPS), groups=2, softcap=2.0)

    def run(kernel):
        def loss(arrays, trained):
            rule = case.rule(None, nnx.merge(graphdef, trained))
            return (kernel(*arrays, rule) ** 2).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1)))(case.arrays(), trained)

    found, expected = run(small), run(by_reference)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected
    )


def test_on_a_mesh_rows_and_heads_stay_cut():
    case = Case((*CASES["documents"].rows, CASES["causal"].rows[0]), softcap=2.0, groups=2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "heads"))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None, "heads"))
    arrays = jax.device_put(case.arrays(), cut)
    out = jax.jit(lambda *x: small(*x, case.rule()))(*arrays)
    assert {shard.data.shape for shard in out.addressable_shards} == {(2, 37, 2, 8)}
    np.testing.assert_allclose(out, oracle(case)["out"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["causal", "documents"])
def test_several_chunks_told_by_places(name):
    """As `auto` takes them: places of a later chunk count from the row's start."""

    def kernel(*call):
        rule = dataclasses.replace(call[3], visibility=masks.by_place(call[3].visibility))
        return small(*call[:3], rule)

    assert_close(weighted(kernel, CASES[name]), oracle(CASES[name]))


def test_a_model_of_long_rows_takes_chunks(monkeypatch):
    cfg = model_config(max_length=300, **{"position.kind": "alibi"})
    tokens_BL = np.random.default_rng(0).integers(0, 40, (2, 300)).astype(np.int32)
    ids_BL = np.ones_like(tokens_BL)
    ids_BL[0, 170:], ids_BL[1, 290:] = 2, 0
    seen, whole = [], chunked.attend
    monkeypatch.setitem(
        kernels.KERNELS, "chunked", lambda q, *x: seen.append(q.shape[1]) or whole(q, *x)
    )
    found, expected = (
        apply(
            dataclasses.replace(cfg, attention_kernel=kernel), random_params(cfg), tokens_BL, ids_BL
        )
        for kernel in ("auto", "reference")
    )
    assert set(seen) == {300}
    np.testing.assert_allclose(found.logits[0], expected.logits[0], atol=2e-5)
    np.testing.assert_allclose(found.logits[1, :290], expected.logits[1, :290], atol=2e-5)


def test_half_the_pairs_are_never_multiplied():
    """By XLA's count: 16 chunks of a row take (16 + 1) / (2 · 16) of the reference's operations."""
    case = Case(([1] * 512,))
    counts = [
        jax.jit(lambda *x, f=f: f(*x, case.rule()))
        .lower(*case.arrays())
        .compile()
        .cost_analysis()["flops"]
        for f in (functools.partial(chunked.attend, chunk=32), by_reference)
    ]
    assert counts[0] / counts[1] == pytest.approx(17 / 32, rel=0.02)
