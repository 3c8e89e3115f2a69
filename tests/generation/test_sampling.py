"""Samplers against distributions worked out in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.generation.sampling import Greedy, MinP, Temperature, TopK, TopP, parse_sampler

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.2, 0.25])


def logits_of(probabilities: np.ndarray, shift: float = 3.0) -> jax.Array:
    return jnp.log(jnp.asarray(probabilities, jnp.float32))[None] + shift


def left(sampler, probabilities: np.ndarray = PROBABILITIES) -> np.ndarray:
    """The distribution that a sampler draws from."""
    return np.asarray(jax.nn.softmax(sampler.filtered(logits_of(probabilities))[0]))


def heated(temperature: float) -> np.ndarray:
    powers = PROBABILITIES ** (1 / temperature)
    return powers / powers.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_is_a_power_of_the_distribution(temperature):
    np.testing.assert_allclose(left(Temperature(temperature)), heated(temperature), rtol=1e-5)


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, [0, 1, 0, 0, 0]),
        (2, [0, 0.4 / 0.65, 0, 0, 0.25 / 0.65]),
        (5, PROBABILITIES),
        (9, PROBABILITIES),
    ],
)
def test_top_k(k, expected):
    np.testing.assert_allclose(left(TopK(k)), expected, rtol=1e-5)


def test_top_k_keeps_exactly_k_of_equal_logits():
    assert (left(TopK(3), np.full(8, 1 / 8)) > 0).tolist() == [True] * 3 + [False] * 5


@pytest.mark.parametrize(
    ("p", "kept"),
    [
        (1e-9, [1]),  # always at least one
        (0.39, [1]),
        (0.41, [1, 4]),  # the token that crosses p stays
        (0.64, [1, 4]),
        (0.66, [1, 3, 4]),
        (0.84, [1, 3, 4]),
        (0.96, [0, 1, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_keeps_a_token_iff_the_mass_before_it_is_below_p(p, kept):
    out = left(TopP(p))
    assert np.flatnonzero(out).tolist() == kept
    np.testing.assert_allclose(
        out[kept], PROBABILITIES[kept] / PROBABILITIES[kept].sum(), rtol=1e-5
    )


def test_top_p_of_one_keeps_a_long_tail():
    probabilities = np.concatenate([[1 - 1e-6], np.full(5000, 1e-6 / 5000)])
    assert (left(TopP(1.0), probabilities) > 0).all()


def test_order_is_temperature_then_top_k_then_top_p():
    # T = 2: .112 .317 .158 .224 .250 about; k = 3 leaves .400 .283 .316; before the third: .716
    after_k = np.where(np.isin(np.arange(5), [1, 3, 4]), heated(2.0), 0)
    after_k /= after_k.sum()
    boundary = after_k[1] + after_k[4]
    assert np.flatnonzero(left(TopP(boundary + 0.01, temperature=2.0, k=3))).tolist() == [1, 3, 4]
    assert np.flatnonzero(left(TopP(boundary - 0.01, temperature=2.0, k=3))).tolist() == [1, 4]


@pytest.mark.parametrize(
    ("p", "temperature", "kept"),
    [
        (0.6, 1.0, [1, 4]),
        (0.49, 1.0, [1, 3, 4]),
        (0.3, 0.5, [1, 4]),
        (1.0, 1.0, [1]),
        (0.1, 1.0, None),
    ],
)
def test_min_p_is_relative_to_the_best_token(p, temperature, kept):
    found = np.flatnonzero(left(MinP(p, temperature))).tolist()
    assert found == (list(range(5)) if kept is None else kept)


@pytest.mark.parametrize(
    "sampler", [Temperature(1.5), TopK(3), TopP(0.6), MinP(0.3), TopP(0.9, temperature=0.7, k=4)]
)
def test_draws_follow_the_distribution_left(sampler):
    draws = 4000
    keys = jax.random.split(jax.random.key(0), draws)
    tokens = sampler(jnp.repeat(logits_of(PROBABILITIES), draws, 0), keys)
    assert tokens.dtype == jnp.int32
    shares = np.bincount(np.asarray(tokens), minlength=5) / draws
    expected = left(sampler)
    assert (shares[expected == 0] == 0).all()
    spread = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(shares - expected) <= 4 * spread + 1e-9).all()


def test_filters_that_drop_nothing_draw_the_same():
    logits = jax.random.normal(jax.random.key(1), (50, 7))
    keys = jax.random.split(jax.random.key(2), 50)
    wanted = Temperature(0.8)(logits, keys)
    for sampler in (TopK(7, 0.8), TopP(1.0, 0.8), MinP(1e-9, 0.8)):
        np.testing.assert_array_equal(sampler(logits, keys), wanted)


@pytest.mark.parametrize("sampler", [Greedy(), Temperature(), TopK(2), TopP(0.7), MinP(0.2)])
def test_a_row_depends_on_its_own_logits_and_key_only(sampler):
    logits = jax.random.normal(jax.random.key(3), (6, 9))
    keys = jax.random.split(jax.random.key(4), 6)
    together = sampler(logits, keys)
    alone = [sampler(logits[i : i + 1], keys[i : i + 1])[0] for i in range(6)]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(sampler(logits[::-1], keys[::-1]), together[::-1])


def test_greedy_takes_the_first_of_the_best():
    logits = jnp.array([[0.0, 2.0, 2.0], [5.0, 1.0, 1.0]])
    keys = jax.random.split(jax.random.key(0), 2)
    assert Greedy()(logits, keys).tolist() == [1, 0]


def test_small_temperatures_and_large_logits_stay_finite():
    keys = jax.random.split(jax.random.key(0), 1)
    for sampler in (Temperature(1e-38), TopK(2, 1e-20), TopP(0.9, 1e-20), MinP(0.1, 1e-20)):
        assert sampler(jnp.array([[1e30, 2e30, -1e30]]), keys).tolist() == [1]


BAD = [-1.0, 0.0, float("nan"), float("inf")]


@pytest.mark.parametrize(
    "make",
    [
        *itertools.chain.from_iterable(
            (
                lambda t=t: Temperature(t),
                lambda t=t: TopK(2, t),
                lambda t=t: TopP(0.5, t),
                lambda t=t: MinP(0.5, t),
            )
            for t in BAD
        ),
        lambda: TopK(0),
        lambda: TopP(0.0),
        lambda: TopP(1.1),
        lambda: TopP(float("nan")),
        lambda: TopP(0.5, k=-1),
        lambda: MinP(0.0),
        lambda: MinP(1.5),
    ],
)
def test_bad_values_are_refused(make):
    with pytest.raises(UserError, match=r"sampler\.(temperature|k|p)"):
        make()


@pytest.mark.parametrize(
    ("text", "sampler"),
    [
        ("greedy", Greedy()),
        ("temperature:0.5", Temperature(0.5)),
        ("top_k:3", TopK(3)),
        ("top_k:3:2", TopK(3, 2.0)),
        ("top_p:0.9:0.8", TopP(0.9, 0.8)),
        ("min_p:.1", MinP(0.1)),
    ],
)
def test_samplers_by_name(text, sampler):
    assert parse_sampler(text) == sampler


@pytest.mark.parametrize(
    "text",
    ["", "beam", "greedy:1", "top_k", "top_k:2.5", "top_k:0", "top_p:a", "top_p:1:1:1", "min_p:"],
)
def test_other_names_are_refused(text):
    with pytest.raises(UserError, match="sampler"):
        parse_sampler(text)
