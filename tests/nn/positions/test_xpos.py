"""xPos: check values of the paper, the decay, exactness at far ids, where numbers end."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.positions import Rope, Xpos, position_bound
from jaxformer.nn.positions.xpos import zetas
from tests.builders import model_config

XPOS = {"position.kind": "xpos", "head_dim": 8}


def products(q_at, k_at, extent, causal=True, **changes):
    """Of the pairs of a query and a key of ones, one head of 8 dimensions, at these ids."""
    cfg = model_config(**XPOS | changes)
    ids, ends = jnp.array([[q_at, k_at]]), jnp.array([[extent, extent]])
    ones = jnp.ones((1, 2, 1, 8))
    q_BLHK, k_BLHK = Xpos(cfg, causal).rotate(ones, ones, ids, ends)
    halves = cfg.position.rope.layout == "half"
    products = np.asarray(q_BLHK[0, 0, 0] * k_BLHK[0, 1, 0])
    return (products.reshape(2, 4).sum(0) if halves else products.reshape(4, 2).sum(1)), cfg


def test_zetas():
    """(2m/d + .4) / 1.4 of the pairs of 8 dimensions."""
    expected = [0.285714, 0.464286, 0.642857, 0.821429]
    np.testing.assert_allclose(zetas(8, model_config().position.xpos), expected, atol=5e-7)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_products_decay_by_pair(layout):
    """Of a pair: 2 ζ^(Δ/512) cos(Δ w), by hand for Δ = 512 and w = 1, .1, .01, .001."""
    pairs, _ = products(700, 188, 1000, **{"position.rope.layout": layout})
    zeta = np.array([0.2857142857, 0.4642857143, 0.6428571429, 0.8214285714])
    expected = 2 * zeta * np.cos(512 * np.array([1, 0.1, 0.01, 0.001]))
    np.testing.assert_allclose(pairs, expected, atol=2e-5)


def test_the_centre_falls_out_of_products():
    """Shifted to the far end of what is allowed, or in a longer text: the same."""
    here, cfg = products(40, 3, 41)
    end = position_bound(cfg)
    for q_at, extent in ((40, 5000), (end - 1, end), (40, end)):
        there, _ = products(q_at, q_at - 37, extent)
        np.testing.assert_allclose(there, here, atol=1e-4)


def test_numbers_end_where_the_bound_says():
    """2^±100 at its end; beyond it NaN, not infinity times zero."""
    cfg = model_config(**XPOS)
    end = position_bound(cfg)
    assert end == int(2 * 100 / np.log2(3.5) * 512)
    assert np.isfinite(products(end - 1, 0, end)[0]).all()
    assert np.isnan(products(end, 0, end + 1)[0]).all()
    assert position_bound(model_config(architecture="encoder", **XPOS)) == 0
    short = model_config(**XPOS | {"position.xpos.scale_base": 1.0})
    assert position_bound(short) == int(200 / np.log2(3.5))
    endless = model_config(**XPOS | {"position.xpos.scale_base": 1e9})
    assert position_bound(endless) == 2**31 - 1  # the last id that there is


def test_without_decay_it_is_rope():
    """A huge scale base; and encoders, whose later keys would grow."""
    flat = {"position.xpos.scale_base": 1e9}
    ids, x = jnp.arange(6)[None], jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 2, 8)))
    x = x.astype(jnp.float32)
    cfg = model_config(**XPOS)
    rope = Rope(cfg, True).rotate(x, x, ids, ids + 1)
    for other in (Xpos(model_config(**XPOS | flat), True), Xpos(cfg, False)):
        for ours, theirs in zip(other.rotate(x, x, ids, ids + 1), rope, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("name", ["gamma", "scale_base"])
def test_fields_are_positive(name):
    with pytest.raises(UserError, match="above 0"):
        model_config(**XPOS | {f"position.xpos.{name}": 0.0})
