"""The spike guard: its statistics against NumPy, what it leaves out, and that it is exact."""

import jax
import numpy as np
import optax
import pytest

from jaxformer.config import SpikeGuardConfig
from jaxformer.errors import UserError
from jaxformer.training.guard import guarded, spikes
from tests.training import tiny

CFG = SpikeGuardConfig(threshold=4.0, decay=0.9, warmup_steps=5)


def by_hand(norms, cfg):
    """(spike or not, mean, variance) after each norm, in float64."""
    mean = variance = 0.0
    found = []
    for n, norm in enumerate(norms):
        bound = cfg.threshold * np.sqrt(variance)
        spike = n >= cfg.warmup_steps and norm - mean > bound
        away = bound if spike else norm - mean
        share = max(1 - cfg.decay, 1 / (n + 1))
        mean, variance = mean + share * away, (1 - share) * (variance + share * away**2)
        found.append((spike, mean, variance))
    return found


def run(norms, cfg):
    tx = guarded(optax.sgd(1.0, momentum=0.5), cfg)
    params = {"kernel": np.zeros(2, np.float32)}
    state, update = tx.init(params), jax.jit(tx.update)
    for norm in norms:
        gradient = {"kernel": np.float32([0.6 * norm, 0.8 * norm])}
        updates, state = update(gradient, state, params)
        yield updates["kernel"], state


def test_statistics_and_decisions():
    rng = np.random.default_rng(0)
    norms = rng.lognormal(0, 0.2, 60)
    norms[[3, 20, 21, 40]] *= [2, 50, 50, 50]  # the first is within the warmup
    expected = by_hand(norms, CFG)
    assert [n for n, (spike, _, _) in enumerate(expected) if spike] == [20, 21, 40]
    before = None
    for (update, state), (spike, mean, variance) in zip(run(norms, CFG), expected, strict=True):
        np.testing.assert_allclose(state.mean, mean, rtol=1e-5)
        np.testing.assert_allclose(state.variance, variance, rtol=1e-4)
        assert (update == 0).all() == spike
        if spike:
            jax.tree.map(np.testing.assert_array_equal, state.inner, before.inner)
        before = state
    assert int(spikes(before)["spikes"]) == 3


def test_the_first_statistics_are_plain_averages():
    norms = [1.0, 2.0, 4.0, 3.0]
    *_, (_, state) = run(norms, CFG)
    np.testing.assert_allclose(state.mean, np.mean(norms), rtol=1e-6)
    np.testing.assert_allclose(state.variance, np.var(norms), rtol=1e-6)


def test_a_norm_that_stays_higher_is_a_spike_for_a_few_steps_only():
    rng = np.random.default_rng(1)
    norms = np.concatenate([rng.normal(1, 0.1, 40), rng.normal(10, 0.1, 40)])
    left_out = [(update == 0).all() for update, _ in run(norms, CFG)]
    assert sum(left_out[:40]) == 0
    assert 1 <= sum(left_out) <= 15
    assert not any(left_out[60:])


def test_the_step_counts_spikes_and_a_bad_update_leaves_the_statistics():
    cfg = tiny.config(train__spike_guard__threshold=3.0, train__spike_guard__warmup_steps=2)
    program = tiny.program(cfg)
    state, big, bad = program.state, tiny.batch(), tiny.batch()
    for step in range(3):
        state, metrics = program.step(state, tiny.batch(step))
    bad["weights"] = np.full_like(bad["weights"], np.inf)
    skipped, _ = program.step(state, bad)
    jax.tree.map(np.testing.assert_array_equal, skipped.opt_state, state.opt_state)
    # One token alone has a gradient much longer than the mean over a batch of them.
    big = tiny.keep_rows(big, np.arange(8) == 0)
    big["weights"][:] = 0
    big["weights"][0, 0] = 1
    spiked, metrics = program.step(state, big)
    assert (int(metrics["spikes"]), int(metrics["skipped_total"])) == (1, 0)
    jax.tree.map(np.testing.assert_array_equal, spiked.params, state.params)
    assert int(spiked.step) == 4


def test_off_is_no_guard_at_all():
    program = tiny.program(tiny.config())
    _, metrics = program.step(program.state, tiny.batch())
    assert "spikes" not in metrics and spikes(program.state.opt_state) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("threshold", -1.0), ("decay", 1.0), ("warmup_steps", 1)]
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(UserError, match=f"train.spike_guard.{name}"):
        tiny.config(**{f"train__spike_guard__{name}": value})
