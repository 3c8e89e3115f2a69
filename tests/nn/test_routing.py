"""Routing by hand: choices, weights, places in an expert, balance loss, what is told of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import MoeConfig
from jaxformer.nn import routing

# A row of six tokens, the fifth of them padding, and three experts.
PROBS = np.array(
    [[.6, .3, .1], [.5, .4, .1], [.2, .7, .1], [.7, .2, .1], [.1, .1, .8], [.1, .3, .6]]
)[None]  # fmt: skip
REAL = np.array([[True, True, True, True, False, True]])
MOE = MoeConfig(
    num_experts=3,
    top_k=1,
    every=1,
    d_ff=0,
    shared_d_ff=0,
    capacity_factor=1.0,
    normalize_top_k=False,
    balance_weight=0.1,
    balance_over="batch",
    z_weight=0.01,
    jitter=0.0,
)


def test_top_1_by_hand():
    """Switch: expert 0 takes two tokens and drops the third, padding takes no place."""
    experts, weights = routing.choose(jnp.asarray(PROBS), REAL, 1, False)
    np.testing.assert_array_equal(experts[0, :, 0], [0, 0, 1, 0, 3, 2])
    np.testing.assert_allclose(weights[0, :, 0], [0.6, 0.5, 0.7, 0.7, 0, 0.6], rtol=1e-6)
    assert routing.capacity(MOE, 6) == 2
    found = routing.slots(experts, 3, 2)
    np.testing.assert_array_equal(found[0, :, 0], [0, 1, 0, 2, 2, 0])


def test_top_2_by_hand():
    """Weights are normalised; an earlier token's second choice comes before a later one's first."""
    experts, weights = routing.choose(jnp.asarray(PROBS), REAL, 2, True)
    expected = [[0, 1], [0, 1], [1, 0], [0, 1], [3, 3], [2, 1]]
    np.testing.assert_array_equal(experts[0], expected)
    shares = [
        [6 / 9, 3 / 9],
        [5 / 9, 4 / 9],
        [7 / 9, 2 / 9],
        [7 / 9, 2 / 9],
        [0, 0],
        [6 / 9, 3 / 9],
    ]
    np.testing.assert_allclose(weights[0], shares, rtol=1e-6)
    places = [[0, 0], [1, 1], [2, 2], [3, 3], [9, 9], [0, 4]]
    np.testing.assert_array_equal(routing.slots(experts, 3, 9)[0], places)
    places = [[0, 0], [1, 1], [2, 2], [2, 2], [2, 2], [0, 2]]
    np.testing.assert_array_equal(routing.slots(experts, 3, 2)[0], places)


def test_sums_by_hand():
    """f = (3, 1, 1) / 5, P = (2.1, 1.9, 1) / 5: balance 3 · (1.26 + .38 + .2) / 5 = 1.104."""
    experts, _ = routing.choose(jnp.asarray(PROBS), REAL, 1, False)
    logits = jnp.log(PROBS) + 2.0  # whose logsumexp is 2
    found = routing.describe(logits, experts, jnp.int32(1), by_row=False)
    np.testing.assert_array_equal(found.load_E, [3, 1, 1])
    assert (found.tokens, found.dropped) == (5, 1)
    assert found.balance / 5 == pytest.approx(1.104, rel=1e-6)
    assert found.z == pytest.approx(5 * 4.0, rel=1e-5)
    real = PROBS[0][REAL[0]]
    assert found.entropy == pytest.approx(-(real * np.log(real)).sum(), rel=1e-5)
    layers = jax.tree.map(lambda x: jnp.stack([x, x]), found)
    told = routing.metrics(layers)
    assert told["experts/load_cv"] == pytest.approx(np.std([3, 1, 1]) / (5 / 3), rel=1e-5)
    assert told["experts/dropped"] == pytest.approx(1 / 5)
    assert told["experts/balance"] == pytest.approx(1.104, rel=1e-5)
    added = routing.losses(MOE, layers, jnp.asarray(REAL.astype(int)), "encoder_")
    assert added.keys() == {"encoder_balance", "encoder_router_z"}
    total, weight = added["encoder_balance"]
    assert (total / weight, weight) == (pytest.approx(0.1 * 2 * 1.104, rel=1e-5), 5)
    assert added["encoder_router_z"][0] / 5 == pytest.approx(0.01 * 2 * 4, rel=1e-5)


def test_top_2_of_even_loads_is_balanced():
    """1 whatever k is; and the balance over rows is the mean of the rows', by tokens."""
    even = jnp.full((2, 6, 3), 1 / 3)
    experts = jnp.asarray(np.array([[[0, 1], [1, 2], [2, 0]] * 2] * 2))
    for by_row in (False, True):
        found = routing.describe(jnp.log(even), experts, jnp.int32(0), by_row)
        assert found.balance / found.tokens == pytest.approx(1, rel=1e-6)


def test_balance_over_rows_is_that_of_each_row():
    rng = np.random.default_rng(0)
    logits, real = rng.normal(size=(3, 5, 4)).astype(np.float32), rng.random((3, 5)) < 0.7
    probs = jax.nn.softmax(logits)
    experts, _ = routing.choose(probs, real, 2, True)
    zero = jnp.int32(0)
    alone = [
        routing.describe(logits[b : b + 1], experts[b : b + 1], zero, by_row=False)
        for b in range(3)
    ]
    rows = routing.describe(logits, experts, zero, by_row=True)
    batch = routing.describe(logits, experts, zero, by_row=False)
    expected = sum(float(one.balance) for one in alone)
    assert rows.balance == pytest.approx(expected, rel=1e-5)
    assert abs(rows.balance - batch.balance) > 1e-3


def test_equal_experts_are_taken_from_the_first():
    experts, _ = routing.choose(jnp.full((1, 1, 4), 0.25), np.ones((1, 1), bool), 3, True)
    np.testing.assert_array_equal(experts[0, 0], [0, 1, 2])


@pytest.mark.parametrize(
    ("factor", "k", "size"), [(1.0, 1, 2), (1.25, 1, 3), (9.0, 1, 6), (1e308, 2, 6), (0.01, 2, 1)]
)
def test_capacity(factor, k, size):
    """At least a token, at most the row."""
    moe = MoeConfig(**{**MOE.to_dict(), "capacity_factor": factor, "top_k": k})
    assert routing.capacity(moe, 6) == size
