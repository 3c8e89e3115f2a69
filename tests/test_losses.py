"""Losses against NumPy float64 and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.losses import accuracy, cross_entropy

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (2, 5, 7)).astype(np.float32)
TARGETS = RNG.integers(0, 7, (2, 5)).astype(np.int32)
WEIGHTS = np.array([[1, 1, 0.5, 0, 2], [0, 1, 0, 1, 1]], np.float32)


def oracle(logits, targets, weights, smoothing=0.0, z_loss=0.0, convention="all"):
    """Sums over tokens one by one, in float64."""
    total = 0.0
    for index in np.ndindex(targets.shape):
        z = np.float64(logits[index])
        log_z = np.log(np.exp(z - z.max()).sum()) + z.max()
        if convention == "all":
            truth = np.full(len(z), smoothing / len(z))
            truth[targets[index]] += 1 - smoothing
        else:
            truth = np.full(len(z), smoothing / (len(z) - 1))
            truth[targets[index]] = 1 - smoothing
        total += weights[index] * (-(truth * (z - log_z)).sum() + z_loss * log_z**2)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("convention", ["all", "others"])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("shape", [(2, 5), (10,)], ids=str)
def test_cross_entropy_equals_the_oracle(smoothing, convention, z_loss, shape):
    arrays = LOGITS.reshape(*shape, 7), TARGETS.reshape(shape), WEIGHTS.reshape(shape)
    total, weight = cross_entropy(
        *map(jnp.asarray, arrays),
        label_smoothing=smoothing,
        smoothing=convention,
        z_loss=z_loss,
    )
    assert total.shape == weight.shape == ()
    assert total.dtype == weight.dtype == jnp.float32
    np.testing.assert_allclose(total, oracle(*arrays, smoothing, z_loss, convention), rtol=2e-6)
    assert weight == 7.5


def test_a_uniform_prediction_costs_log_v():
    total, weight = cross_entropy(jnp.zeros((3, 8)), jnp.array([0, 5, 7]), jnp.ones(3))
    np.testing.assert_allclose(total / weight, np.log(8), rtol=1e-6)


@pytest.mark.parametrize(
    ("convention", "truth"), [("all", [0.8, 0.1, 0.1]), ("others", [0.7, 0.15, 0.15])]
)
def test_label_smoothing_by_hand_beside_padding(convention, truth):
    """ε = .3 of three classes: ε / V on each, or ε / (V - 1) on the others; none on padding.

    The loss must not change with padding (pytorch#73205).
    """
    logits = jnp.array([[np.log(2.0), 0.0, 0.0], [9.0, -9.0, 0.0]])  # probabilities 1/2 1/4 1/4
    by_hand = -(truth[0] * np.log(1 / 2) + (truth[1] + truth[2]) * np.log(1 / 4))
    targets = jnp.array([0, 1])
    for weights, padding in (([1.0, 0.0], 1), ([2.0, 0.0], 1), ([1.0, 0.0], -100)):
        total, weight = cross_entropy(
            logits,
            targets.at[1].set(padding),
            jnp.array(weights),
            label_smoothing=0.3,
            smoothing=convention,
        )
        np.testing.assert_allclose(total, weights[0] * by_hand, rtol=1e-6)
        assert weight == weights[0]


def test_z_loss_by_hand():
    """Logits log 2, 0, 0 have log-normaliser log 4."""
    logits = jnp.array([[np.log(2.0), 0.0, 0.0]])
    total, _ = cross_entropy(logits, jnp.array([0]), jnp.array([2.0]), z_loss=0.5)
    np.testing.assert_allclose(total, 2 * (np.log(2) + 0.5 * np.log(4) ** 2), rtol=1e-6)


@pytest.mark.parametrize("target", [-1, -100, 7, 10**6])
def test_a_target_of_weight_zero_adds_neither_loss_nor_gradient(target):
    def loss(logits, targets):
        return cross_entropy(logits, targets, WEIGHTS, label_smoothing=0.1, z_loss=0.1)[0]

    odd = np.where(WEIGHTS == 0, target, TARGETS)
    plain, gradient = jax.value_and_grad(loss)(LOGITS, TARGETS)
    other, odd_gradient = jax.value_and_grad(loss)(LOGITS, odd)
    assert plain == other
    np.testing.assert_array_equal(odd_gradient, gradient)
    assert not np.asarray(gradient)[WEIGHTS == 0].any()
    assert np.asarray(gradient)[WEIGHTS != 0].any(-1).all()


def test_a_weighted_target_outside_the_vocabulary_is_loud():
    total, _ = cross_entropy(LOGITS, np.where(WEIGHTS == 2, 7, TARGETS), WEIGHTS)
    assert np.isnan(total)


def test_no_weight_at_all_gives_zero():
    def loss(logits):
        return cross_entropy(logits, TARGETS, np.zeros_like(WEIGHTS), label_smoothing=0.1)

    (total, weight), gradient = loss(LOGITS), jax.grad(lambda z: loss(z)[0])(LOGITS)
    assert total == weight == 0
    assert not gradient.any()


def test_the_gradient_is_probabilities_less_truth():
    gradient = jax.grad(lambda z: cross_entropy(z, TARGETS, WEIGHTS)[0])(LOGITS)
    z = np.exp(np.float64(LOGITS))
    expected = (z / z.sum(-1, keepdims=True) - np.eye(7)[TARGETS]) * WEIGHTS[..., None]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_large_and_bfloat16_logits():
    total, _ = cross_entropy(jnp.array([[1e4, -1e4]]), jnp.array([1]), jnp.ones(1))
    assert total == 2e4
    rounded = jnp.asarray(LOGITS, jnp.bfloat16)
    total, _ = cross_entropy(rounded, TARGETS, WEIGHTS)
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(total, oracle(np.float32(rounded), TARGETS, WEIGHTS), rtol=2e-6)


def test_accuracy_counts_weight():
    targets = LOGITS.argmax(-1)
    targets[0, 4], targets[1, 2] = (targets[0, 4] + 1) % 7, -1  # weights 2 and 0
    right, weight = accuracy(jnp.asarray(LOGITS), jnp.asarray(targets), jnp.asarray(WEIGHTS))
    assert (right, weight) == (5.5, 7.5)
    assert right.dtype == weight.dtype == jnp.float32


def test_sums_add_up_over_any_split():
    """(sum, weight) of parts is that of the whole; a mean of means is not."""
    parts = [cross_entropy(LOGITS[b], TARGETS[b], WEIGHTS[b]) for b in range(2)]
    total, weight = cross_entropy(LOGITS, TARGETS, WEIGHTS)
    np.testing.assert_allclose(parts[0][0] + parts[1][0], total, rtol=1e-6)
    assert parts[0][1] + parts[1][1] == weight
    assert abs(sum(t / w for t, w in parts) / 2 - total / weight) > 1e-2
