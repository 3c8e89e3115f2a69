"""Dropout by itself and its sites in the decoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.models import trunk
from jaxformer.nn import block, feedforward
from jaxformer.nn.dropout import RowKey, dropout
from jaxformer.nn.kernels import reference
from tests.builders import apply, graphdef, model_config, random_params

KEY = jax.random.key(3)
ONES = jnp.ones((6, 5, 7))


def draw(rows, key=KEY, rate=0.4, site="residual", layer=0):
    rows_B = jnp.asarray(rows, jnp.int32)
    return np.asarray(dropout(ONES[: len(rows)], rate, RowKey(key, rows_B), site, layer))


def test_a_row_draws_the_same_however_the_batch_is_split():
    together = draw(range(6))
    for rows in ([0, 1, 2], [5], [4, 0], [3, 2, 1, 5]):
        np.testing.assert_array_equal(draw(rows), together[rows])
    assert draw([2**31 - 1]).shape == (1, 5, 7)


def test_rows_steps_sites_and_layers_draw_differently():
    masks = [
        *draw([0, 1, 2**31 - 1]),
        *draw([0], key=jax.random.fold_in(KEY, 1)),
        *draw([0], site="embedding"),
        *draw([0], layer=1),
        *draw([1], layer=1),  # (layer, row) must not collide with (row, layer)
    ]
    unlike = [(a != b).any() for i, a in enumerate(masks) for b in masks[:i]]
    assert all(unlike)


def test_a_traced_layer_draws_like_a_number():
    traced = jax.jit(lambda layer: dropout(ONES, 0.4, RowKey.of(KEY, 6), "residual", layer))(1)
    np.testing.assert_array_equal(traced, draw(range(6), layer=1))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_kept_share_and_expectation(rate):
    x = jnp.full((64, 2000), 3.0)
    y = np.asarray(dropout(x, rate, RowKey.of(KEY, 64), "site"))
    probability = round((1 - rate) * 2**16) / 2**16  # of keeping: exactly this, exactly undone
    np.testing.assert_allclose(np.unique(y), [0, 3 / probability], rtol=1e-6)
    n, kept = x.size, (y != 0).mean()
    four_sigma = 4 * (rate * (1 - rate) / n) ** 0.5
    assert abs(kept - (1 - rate)) < four_sigma
    assert abs(y.mean() / 3 - 1) < four_sigma / (1 - rate)
    columns = (y != 0).mean(0)  # no column is dropped in all rows alike
    assert columns.min() > 0 or rate > 0.8
    assert columns.max() < 1 or rate < 0.2


def test_no_key_or_no_rate_leaves_the_input_alone():
    assert dropout(ONES, 0.4, None, "site") is ONES
    assert dropout(ONES, 0.0, RowKey.of(KEY, 6), "site") is ONES


def test_the_type_of_the_input_is_kept():
    y = dropout(ONES.astype(jnp.bfloat16), 0.5, RowKey.of(KEY, 6), "site")
    assert y.dtype == jnp.bfloat16
    assert set(np.unique(y.astype(jnp.float32))) == {0.0, 2.0}


RATES = {f"dropout.{n}": 0.3 for n in ("embedding", "attention", "feed_forward", "residual")}
TOKENS = np.random.default_rng(0).integers(0, 40, (4, 6)).astype(np.int32)


@functools.cache
def model(**changes):
    cfg = model_config(**(changes or RATES))
    return cfg, random_params(cfg)


def test_every_site_of_every_layer_has_a_name_of_its_own(monkeypatch):
    seen = []

    def spy(x, rate, key, site, layer=0):
        seen.append((site, layer, rate))
        return x

    for module in (trunk, block, feedforward, reference):
        monkeypatch.setattr(module, "dropout", spy)
    rates = {"embedding": 0.1, "attention": 0.2, "feed_forward": 0.3, "residual": 0.4}
    cfg, params = model(**{f"dropout.{name}": rate for name, rate in rates.items()})
    apply(cfg, params, TOKENS, key=KEY)
    expected = [("embedding", 0, 0.1)]
    for layer in range(2):
        expected += [("attention_weights", layer, 0.2), ("attention_output", layer, 0.4)]
        expected += [("feed_forward", layer, 0.3), ("feed_forward_output", layer, 0.4)]
    assert seen == expected


def test_the_model_draws_by_global_row():
    cfg, params = model()
    together = np.asarray(apply(cfg, params, TOKENS, key=KEY).logits)
    rows_B = np.array([3, 1, 0, 2], np.int32)
    mixed = apply(cfg, params, TOKENS[rows_B], key=RowKey(KEY, jnp.asarray(rows_B))).logits
    np.testing.assert_allclose(mixed, together[rows_B], atol=1e-5)
    other_rows = apply(cfg, params, TOKENS, key=RowKey(KEY, jnp.arange(4) + 4)).logits
    other_step = apply(cfg, params, TOKENS, key=jax.random.fold_in(KEY, 1)).logits
    without = apply(cfg, params, TOKENS).logits
    for unlike in (other_rows, other_step, without):
        assert (np.abs(unlike - together).max((1, 2)) > 1e-3).all()


def test_the_same_tokens_in_another_row_are_dropped_differently():
    cfg, params = model()
    logits_BLV = np.asarray(apply(cfg, params, np.tile(TOKENS[:1], (4, 1)), key=KEY).logits)
    assert all(np.abs(logits_BLV[b] - logits_BLV[0]).max() > 1e-3 for b in (1, 2, 3))


@pytest.mark.parametrize("name", RATES)
def test_each_rate_does_something(name):
    cfg, params = model(**{name: 0.3})
    logits_BLV = np.asarray(apply(cfg, params, TOKENS, key=KEY).logits)
    assert np.abs(logits_BLV - apply(cfg, params, TOKENS).logits).max() > 1e-3


def test_scanned_layers_drop_like_unrolled_ones():
    cfg, params = model()
    scanned, stacked = model(**(RATES | {"scan_layers": True}))
    unrolled_BLV = np.asarray(apply(cfg, params, TOKENS, key=KEY).logits)
    scan = jax.jit(lambda p, t, k: nnx.merge(graphdef(scanned), p)(t, key=k).logits)
    np.testing.assert_allclose(scan(stacked, TOKENS, KEY), unrolled_BLV, atol=1e-5)


def test_sites_of_an_encoder_decoder_differ(monkeypatch):
    """No two sites of encoder and decoder share a key, a name and a layer."""
    seen = []

    def spy(x, rate, key, site, layer=0):
        seen.append((jax.random.key_data(key.key).tobytes(), site, layer))
        return x

    for module in (trunk, block, feedforward, reference):
        monkeypatch.setattr(module, "dropout", spy)
    cfg, params = model(**(RATES | {"architecture": "encoder_decoder", "num_encoder_layers": 1}))
    apply(cfg, params, TOKENS, TOKENS, key=KEY)
    assert len(seen) == len(set(seen)) == (1 + 4) + (1 + 2 * 6)
