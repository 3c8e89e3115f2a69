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


# Each is (fields, {s: rate}); the rate at step n is that of s = n + 1.
SCHEDULES = {
    "noam": (
        {"kind": "inverse_sqrt", "peak_value": (512 * 4000) ** -0.5, "warmup_steps": 4000},
        {0: 0.0, 2000: 3.494e-4, 4000: 6.988e-4, 8000: 4.941e-4, 80000: 1.563e-4},
    ),
    "linear": (
        {"kind": "linear", "init_value": 0.2, "end_value": 0.1, "decay_steps": 110},
        {0: 0.2, 5: 0.6, 10: 1.0, 11: 0.991, 60: 0.55, 110: 0.1, 999: 0.1},
    ),
    "linear without warmup": (
        {"kind": "linear", "warmup_steps": 0, "decay_steps": 100},
        {0: 1.0, 1: 0.99, 50: 0.5, 100: 0.0, 101: 0.0},
    ),
    "wsd": (
        {"kind": "wsd", "decay_steps": 100, "cooldown_steps": 20, "end_value": 0.5},
        {0: 0.0, 1: 0.1, 10: 1.0, 80: 1.0, 90: 0.75, 100: 0.5, 200: 0.5},
    ),
    "wsd without stable part": (
        {"kind": "wsd", "decay_steps": 30, "cooldown_steps": 20},
        {5: 0.5, 10: 1.0, 20: 0.5, 30: 0.0},
    ),
    "constant": ({"kind": "constant"}, {0: 0.0, 5: 0.5, 10: 1.0, 11: 1.0, 10**6: 1.0}),
    "constant at once": ({"kind": "constant", "warmup_steps": 0}, {0: 1.0, 1: 1.0, 1000: 1.0}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_pinned(name):
    fields, table = SCHEDULES[name]
    fields = {"peak_value": 1.0, "warmup_steps": 10, "decay_steps": 0} | fields
    _, schedule = make_optimizer(tiny.config(**{f"schedule__{k}": v for k, v in fields.items()}))
    for step, expected in table.items():
        np.testing.assert_allclose(float(schedule(step)), expected, rtol=5e-4, atol=1e-9)
    steps = jnp.array(list(table))
    np.testing.assert_allclose(
        jax.jit(jax.vmap(schedule))(steps), list(table.values()), rtol=5e-4, atol=1e-9
    )


def test_noam_is_the_formula_of_the_paper():
    d_model, warmup = 512, 4000
    cfg = tiny.config(
        schedule__kind="inverse_sqrt",
        schedule__peak_value=(d_model * warmup) ** -0.5,
        schedule__warmup_steps=warmup,
        schedule__decay_steps=0,
    )
    _, schedule = make_optimizer(cfg)
    for s in (1, 2, 100, 3999, 4000, 4001, 10**5):
        expected = d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)
        np.testing.assert_allclose(float(schedule(s)), expected, rtol=1e-5)


def test_adam_by_hand():
    """Two updates of b1 .9, b2 .98, epsilon 1e-9 on a scalar; nothing decays."""
    cfg = tiny.config(
        optimizer__kind="adam",
        optimizer__b2=0.98,
        optimizer__epsilon=1e-9,
        optimizer__weight_decay=0.0,
        optimizer__clip_norm=0.0,
    )
    tx, _ = make_optimizer(cfg)
    params = {"kernel": jnp.array([5.0])}
    state, m, v = tx.init(params), 0.0, 0.0
    for step, gradient in ((1, 2.0), (2, -1.0)):
        updates, state = tx.update({"kernel": jnp.array([gradient])}, state, params)
        m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
        expected = -(m / (1 - 0.9**step)) / (math.sqrt(v / (1 - 0.98**step)) + 1e-9)
        np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-5)


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


@pytest.mark.parametrize("scan_layers", [False, True])
def test_decay_in_an_encoder_decoder(scan_layers):
    cfg = tiny.config(**tiny.SEQ2SEQ, model__num_layers=2, model__scan_layers=scan_layers)
    params = jax.eval_shape(lambda: init(cfg.model, jax.random.key(0)))
    for keys, decays in jax.tree_util.tree_leaves_with_path(decay_mask(params)):
        assert decays == (keys[-1].key in ("kernel", "table"))
        assert decays or keys[-1].key in ("bias", "scale")


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
