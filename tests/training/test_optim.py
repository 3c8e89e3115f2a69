import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.models import init
from jaxformer.training.optim import decay_mask, make_optimizer
from tests.training import tiny


def test_schedule_is_pinned_at_the_step_that_is_read():
    """warmup 10 of 100 steps to 1, cosine down to .1; step s reads schedule(s + 1)."""
    cfg = tiny.config(
        schedule__peak_value=1.0,
        schedule__warmup_steps=10,
        schedule__decay_steps=100,
        schedule__end_value=0.1,
    )
    _, schedule = make_optimizer(cfg)
    half_way = 0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2
    one_before = 0.1 + 0.9 * (1 + math.cos(math.pi * 89 / 90)) / 2
    table = {0: 0.1, 8: 0.9, 9: 1.0, 54: half_way, 98: one_before, 99: 0.1, 149: 0.1}
    for step, expected in table.items():
        np.testing.assert_allclose(float(schedule(step + 1)), expected, rtol=1e-5)


def test_constant_schedule():
    cfg = tiny.config(
        schedule__kind="constant",
        schedule__warmup_steps=0,
        schedule__decay_steps=0,
        schedule__peak_value=0.25,
    )
    _, schedule = make_optimizer(cfg)
    assert float(schedule(1)) == float(schedule(1000)) == 0.25


@pytest.mark.parametrize("scan_layers", [False, True])
def test_decay_is_chosen_by_name_never_by_rank(scan_layers):
    cfg = tiny.config(model__num_layers=2, model__scan_layers=scan_layers)
    params = init(cfg.model, jax.random.key(0))
    mask = decay_mask(params)
    decayed = {
        jax.tree_util.keystr(keys, simple=True, separator="/"): flag
        for keys, flag in jax.tree_util.tree_leaves_with_path(mask)
    }
    layer = "layers" if scan_layers else "layers/1"
    assert decayed[f"{layer}/attention/query/kernel"]
    assert decayed[f"{layer}/feed_forward/down/kernel"]
    assert decayed["embedding/table"]
    assert decayed["position/learned/table"]
    assert not decayed[f"{layer}/attention/query/bias"]
    assert not decayed[f"{layer}/attention_norm/scale"]
    assert not decayed["final_norm/bias"]
    if scan_layers:
        assert params["layers"]["attention_norm"]["scale"].ndim == 2


def test_decay_moves_only_the_named_leaves():
    tx, _ = make_optimizer(tiny.config(optimizer__weight_decay=0.5, optimizer__clip_norm=0.0))
    params = {"kernel": jnp.full((2, 2), 2.0), "scale": jnp.full((2, 2), 2.0)}
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    np.testing.assert_array_equal(updates["kernel"], -1.0)
    np.testing.assert_array_equal(updates["scale"], 0.0)


@pytest.mark.parametrize(("clip_norm", "factor"), [(1.0, 1 / 13), (100.0, 1.0), (0.0, 1.0)])
def test_gradients_are_clipped_to_the_global_norm(clip_norm, factor):
    """|(3, 4, 12)| = 13; Adam's first moment is (1 - b1) times the clipped gradient."""
    tx, _ = make_optimizer(tiny.config(optimizer__clip_norm=clip_norm, optimizer__b1=0.5))
    gradient = {"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([12.0])}
    params = jax.tree.map(jnp.zeros_like, gradient)
    _, state = tx.update(gradient, tx.init(params), params)
    moment = optax.tree.get(state, "mu")
    np.testing.assert_allclose(moment["kernel"], np.array([1.5, 2.0]) * factor, rtol=1e-6)
    np.testing.assert_allclose(moment["bias"], np.array([6.0]) * factor, rtol=1e-6)
