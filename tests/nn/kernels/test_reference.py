"""The reference attention kernel by itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import masks
from jaxformer.nn.kernels import reference
from jaxformer.nn.kernels.reference import masked_softmax
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.masks import Visibility
from jaxformer.nn.positions import PositionEncoding
from tests.builders import model_config


def rule(segment_ids, causal=True, encoding=None):
    ids_BL = jnp.asarray(segment_ids, jnp.int32)
    order_BL = masks.order(ids_BL)
    positions_BL = masks.contiguous_positions(ids_BL)
    visibility = Visibility(order_BL, order_BL, ids_BL, ids_BL, causal)
    return Rule(visibility, 8**-0.5, 0.0, None, encoding, positions_BL, positions_BL)


attend = reference.attend


def draw(H=4, G=4, B=2, L=5, K=8, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(B, L, n, K)), dtype) for n in (H, G, G))


RAGGED = [[1, 1, 2, 2, 0], [0, 1, 1, 1, 1]]


@pytest.mark.parametrize("causal", [True, False])
def test_a_query_that_sees_nothing_gives_zero_and_sends_no_gradient(causal):
    q_BLHK, k_BSGK, v_BSGK = draw()
    by = rule(RAGGED, causal)

    def outputs(q, k, v):
        return attend(q, k, v, by)[0]

    out_BLHK, vjp = jax.vjp(outputs, q_BLHK, k_BSGK, v_BSGK)
    is_padding_BL = np.array(RAGGED) == 0
    assert not np.asarray(out_BLHK)[is_padding_BL].any()
    assert np.asarray(out_BLHK)[~is_padding_BL].all()
    gradients = vjp(jnp.ones_like(out_BLHK))
    for gradient in gradients:  # padding as a query, as a key and as a value
        assert np.isfinite(gradient).all()
        assert not np.asarray(gradient)[is_padding_BL].any()
        assert np.asarray(gradient)[~is_padding_BL].any()
    only_padding = vjp(jnp.where(is_padding_BL[..., None, None], 1.0, 0.0 * out_BLHK))
    assert not any(np.asarray(gradient).any() for gradient in only_padding)


def test_a_batch_of_nothing_but_padding():
    by = rule(np.zeros((2, 5)))
    out_BLHK, vjp = jax.vjp(lambda *a: attend(*a, by)[0], *draw())
    assert not out_BLHK.any()
    assert not any(gradient.any() for gradient in vjp(jnp.ones_like(out_BLHK)))


@pytest.mark.parametrize("G", [1, 2])
def test_grouped_heads_equal_repeated_ones(G):
    """Query head h shares key/value head h // (H / G)."""
    q_BLHK, k_BSGK, v_BSGK = draw(G=G)
    repeated = (jnp.repeat(k_BSGK, 4 // G, 2), jnp.repeat(v_BSGK, 4 // G, 2))
    out_BLHK, weights_BHLS = attend(q_BLHK, k_BSGK, v_BSGK, rule(RAGGED))
    full_BLHK, full_weights_BHLS = attend(q_BLHK, *repeated, rule(RAGGED))
    np.testing.assert_allclose(out_BLHK, full_BLHK, atol=1e-6)
    np.testing.assert_allclose(weights_BHLS, full_weights_BHLS, atol=1e-6)


class Hooks(PositionEncoding):
    """An encoding that adds to the logits and restricts the mask."""

    def bias(self, q_positions_BL, k_positions_BS):
        return -1.5 * (q_positions_BL[:, None, :, None] - k_positions_BS[:, None, None])

    def allow(self, q_positions_BL, k_positions_BS):
        return q_positions_BL[:, None, :, None] - k_positions_BS[:, None, None] < 2


def test_the_encoding_adds_to_scaled_logits_and_restricts_the_mask():
    q_BLHK, k_BSGK, v_BSGK = draw()
    by = rule(np.ones((2, 5)), encoding=Hooks(model_config(), True))
    _, weights_BHLS = attend(q_BLHK, k_BSGK, v_BSGK, by)
    scores_BHLS = np.einsum("blhk,bshk->bhls", q_BLHK, k_BSGK, dtype=np.float64) / 8**0.5
    for i in range(5):
        j = np.arange(max(0, i - 1), i + 1)
        expected = np.exp(scores_BHLS[:, :, i, j] - 1.5 * (i - j))
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(weights_BHLS[:, :, i, j], expected, atol=1e-6)
        others = np.delete(np.asarray(weights_BHLS)[:, :, i], j, -1)
        assert not others.any()


class ByContent(PositionEncoding):
    """Doubles the visible logits, and adds the weights of keys 0 and 1 to two of the outputs."""

    def score(self, q_BLHK, logits_BHLS, mask_BHLS, q_positions_BL, k_positions_BS):
        assert mask_BHLS.shape[-2:] == logits_BHLS.shape[-2:]
        return jnp.where(mask_BHLS, logits_BHLS, jnp.nan)

    def mix(self, weights_BHLS, q_positions_BL, k_positions_BS):
        pair_BLHS = jnp.moveaxis(weights_BHLS[..., :2], 1, 2)
        return jnp.pad(pair_BLHS, [(0, 0), (0, 0), (0, 0), (0, 6)])


def test_scores_and_mixtures_see_logits_and_weights():
    """Padding included: what a hook says of hidden keys, be it NaN, does not count."""
    q_BLHK, k_BSGK, v_BSGK = draw()
    by = rule(RAGGED, encoding=ByContent(model_config(), True))
    out_BLHK, weights_BHLS = attend(q_BLHK, k_BSGK, v_BSGK, by)
    plain = dataclasses.replace(by, encoding=None, scale=2 * by.scale)
    plain_BLHK, plain_weights_BHLS = attend(q_BLHK, k_BSGK, v_BSGK, plain)
    np.testing.assert_allclose(weights_BHLS, plain_weights_BHLS, atol=1e-6)
    added = np.asarray(out_BLHK) - plain_BLHK
    np.testing.assert_allclose(added[..., :2], np.moveaxis(weights_BHLS, 1, 2)[..., :2], atol=1e-6)
    assert not added[..., 2:].any()


def test_bfloat16_inputs_keep_float32_logits_and_softmax():
    q_BLHK, k_BSGK, v_BSGK = draw(dtype=jnp.bfloat16)
    out_BLHK, weights_BHLS = attend(q_BLHK, k_BSGK, v_BSGK, rule(RAGGED))
    exact = [x.astype(jnp.float32) for x in (q_BLHK, k_BSGK, v_BSGK)]
    exact_BLHK, exact_weights_BHLS = attend(*exact, rule(RAGGED))
    assert out_BLHK.dtype == jnp.bfloat16
    assert weights_BHLS.dtype == jnp.float32
    np.testing.assert_allclose(weights_BHLS, exact_weights_BHLS, atol=1e-6)
    np.testing.assert_allclose(out_BLHK.astype(jnp.float32), exact_BLHK, atol=0.02)


def test_masked_softmax_by_hand():
    logits, mask = jnp.array([[2.0, 7.0, 1.0], [5.0, 5.0, 5.0]]), [[1, 0, 1], [0, 0, 0]]
    weights = masked_softmax(logits, jnp.array(mask, bool))
    np.testing.assert_allclose(weights, [[0.731059, 0, 0.268941], [0, 0, 0]], atol=1e-6)


def test_masked_softmax_of_large_logits():
    weights = masked_softmax(jnp.array([1e4, 1e4, -1e4]), jnp.array([True, True, True]))
    np.testing.assert_array_equal(weights, [0.5, 0.5, 0])
    weights = masked_softmax(jnp.array([-1e6, 9.0, -1e6]), jnp.array([True, False, True]))
    np.testing.assert_array_equal(weights, [0.5, 0, 0.5])


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (3, 3), (2, 3, 4), (5, 1, 1)], ids=str)
def test_a_mask_of_another_rank_or_shape_raises(shape):
    """A 3-D score with a (1, 1, Q, K) mask must not broadcast to a fourth dimension."""
    with pytest.raises(ValueError, match=r"mask|shapes"):
        masked_softmax(jnp.zeros((2, 3, 3)), jnp.ones(shape, bool))
