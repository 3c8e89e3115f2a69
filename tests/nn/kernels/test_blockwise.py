"""The blockwise kernel: the reference's numbers without the reference's memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import masks
from jaxformer.nn.kernels import blockwise
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.masks import Visibility
from jaxformer.nn.positions import PositionEncoding
from tests.builders import make_model, model_config, random_params
from tests.nn.kernels.cases import (
    CASES,
    RAGGED,
    WHOLE,
    Case,
    L,
    assert_close,
    by_reference,
    ids,
    oracle,
    weighted,
)

small = functools.partial(blockwise.attend, chunk=8, block=16)
at_once = functools.partial(small, by_row=False)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_formulas(name):
    found = weighted(small, CASES[name])
    assert_close(found, oracle(CASES[name]))
    masked = ~CASES[name].mask().any(-1)
    assert masked.any() == (name not in ("causal", "prefix"))
    assert not found["out"][masked].any()
    assert not found["q"][masked].any()


@pytest.mark.parametrize("name", ["window", "cross"])
def test_all_rows_at_once_give_the_same(name):
    assert_close(weighted(at_once, CASES[name]), oracle(CASES[name]))


@pytest.mark.parametrize(("chunk", "block"), [(1000, 1000), (24, 5)])
def test_any_sizes_of_blocks_give_the_same(chunk, block):
    kernel = functools.partial(blockwise.attend, chunk=chunk, block=block)
    assert_close(weighted(kernel, CASES["documents"]), oracle(CASES["documents"]))


def test_bfloat16():
    """Its eight bits, of values up to about 4 (outputs) and 8 (gradients)."""
    case = CASES["causal"]
    out = jax.eval_shape(lambda *x: small(*x, case.rule()), *case.arrays(jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    exact, found = oracle(case), weighted(small, case, jnp.bfloat16)
    for name, atol in {"out": 0.02, "q": 0.04, "k": 0.06, "v": 0.06}.items():
        np.testing.assert_allclose(found[name], exact[name], rtol=0.02, atol=atol, err_msg=name)


def encoding_of(**changes):
    """A position encoding with random parameters, and those."""
    cfg = model_config(**changes)
    params, kind = random_params(cfg), changes["position.kind"]
    encoding = make_model(cfg).position[kind]
    return encoding, params.get("position", {}).get(kind, {})


class Even(PositionEncoding):
    """Allows even distances only, and adds the query's position to the logits of one head."""

    def allow(self, q_positions_BL, k_positions_BS):
        away = q_positions_BL[..., None] - k_positions_BS[:, None]
        return (away % 2 == 0)[:, None]


@pytest.mark.parametrize(
    ("kind", "causal"),
    [("alibi", True), ("t5", False), ("fire", True), ("hard_alibi", False), ("sandwich", True)],
)
def test_biases_and_gradients_of_what_they_train(kind, causal):
    encoding, params = encoding_of(**{"position.kind": kind})
    graphdef, _ = nnx.split(encoding)
    case = Case(tuple(RAGGED), causal=causal, groups=2, softcap=2.0)
    arrays, draws = case.arrays(), np.random.default_rng(2)
    weights = jnp.asarray(draws.normal(size=arrays[0].shape), jnp.float32)

    def run(kernel):
        def loss(arrays, params):
            out = kernel(*arrays, case.rule(None, nnx.merge(graphdef, params)))
            return (out * weights).sum(), out

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(arrays, params)

    found, expected = run(small), run(by_reference)
    leaves = jax.tree.leaves(expected[1][1])
    assert len(leaves) == {"t5": 1, "fire": 5}.get(kind, 0)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in leaves)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected
    )


def test_an_encoding_that_restricts():
    case, encoding = CASES["documents"], Even(model_config(), True)
    found = weighted(small, case, encoding=encoding)
    assert_close(found, weighted(by_reference, case, encoding=encoding))
    assert np.abs(found["out"] - oracle(case)["out"]).max() > 0.1


def test_what_a_cache_holds_is_attended_to():
    """Queries 20 … 31 of a row whose keys are the slots of a cache of 40."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, n, 4, 8)), jnp.float32) for n in (12, 40, 40))
    slots = jnp.arange(40)[None]
    places = slots[:, 20:32], slots, jnp.ones((1, 12), int), (slots < 32).astype(int)
    rule = Rule(Visibility(*places, True), 8**-0.5)
    found, expected = (jax.jit(lambda *x, f=f: f(*x, rule))(q, k, v) for f in (small, by_reference))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_blocks_that_nobody_sees_are_never_touched():
    """NaN in a key spoils every product that it takes part in, masked or not."""
    q, k, v = Case(tuple(WHOLE)).arrays()

    def finite(case, spoiled, kernel=small):
        bad = [x.at[:, spoiled].set(jnp.nan) for x in (k, v)]

        def run(q, k, v):
            return jax.value_and_grad(lambda q: kernel(q, k, v, case.rule())[:, :, 0].sum())(q)

        return np.isfinite(jax.jit(run)(q, *bad)[1]).all((0, 2, 3))

    later = finite(Case(tuple(WHOLE)), slice(16, None))
    np.testing.assert_array_equal(later, np.arange(L) < 16)
    later = finite(Case(tuple(WHOLE)), slice(16, None), at_once)
    np.testing.assert_array_equal(later, np.arange(L) < 16)
    beyond = finite(Case(tuple(WHOLE), window=3), slice(0, 16))
    np.testing.assert_array_equal(beyond, np.arange(L) >= 24)  # of 24, 22 and 23 are seen
    other = finite(Case((ids(16, 21),) * 3, causal=False), slice(0, 16))
    np.testing.assert_array_equal(other, np.arange(L) >= 16)


def test_a_document_changes_no_bit_of_another():
    case = Case((ids(18, 19),) * 3)
    q, k, v = case.arrays()
    run = jax.jit(lambda *x: small(*x, case.rule()))
    changed = [x.at[:, :18].multiply(-2) for x in (q, k, v)]
    before, after = run(q, k, v), run(*changed)
    np.testing.assert_array_equal(before[:, 18:], after[:, 18:])
    assert (before[:, :18] != after[:, :18]).any()


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporary(kernel, length):
        case_ids = jnp.ones((1, length), jnp.int32)
        order = masks.order(case_ids)
        rule = Rule(Visibility(order, order, case_ids, case_ids, True), 0.25)
        shape = jax.ShapeDtypeStruct((1, length, 4, 16), jnp.float32)
        run = jax.grad(lambda x: kernel(*x, rule).sum())
        return jax.jit(run).lower((shape,) * 3).compile().memory_analysis().temp_size_in_bytes

    ours = [temporary(blockwise.attend, length) for length in (1024, 2048)]
    assert ours[1] < 2.5 * ours[0]
    assert 8 * ours[1] < temporary(by_reference, 2048)
