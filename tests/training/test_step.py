"""The step: one update whatever the split, no NaN without tokens, no poison from bad gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxformer.config import MeshConfig
from jaxformer.losses import cross_entropy
from jaxformer.models import build
from jaxformer.sharding import make_mesh, put_batch
from tests.training import tiny


def tree_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def tree_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


@pytest.mark.parametrize(("scan_layers", "splits"), [(False, (2, 8)), (True, (4,))])
def test_update_is_the_same_for_any_number_of_microbatches(scan_layers, splits):
    """Dropout on; rows have 1 to 8 tokens, so a mean of microbatch means would be far off."""
    results = []
    for parts in (1, *splits):
        cfg = tiny.config(
            train__num_microbatches=parts, model__scan_layers=scan_layers, **tiny.DROPOUT
        )
        program = tiny.program(cfg, sgd_norm=0.5, rate=0.5)
        state, sums = program.state, []
        for step in range(5):
            state, metrics = program.step(state, tiny.batch(step))
            sums.append([metrics[n] for n in ("loss", "weight", "correct", "grad_norm")])
        results.append((state.params, np.array(sums)))
    for params, sums in results[1:]:
        np.testing.assert_allclose(sums, results[0][1], rtol=1e-5)
        tree_close(params, results[0][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["offset", "randomized"])
def test_drawn_positions_are_those_of_a_row_however_a_batch_is_split(kind):
    """In four microbatches, or on eight devices; each step draws anew."""
    drawn = {"model__position__source__kind": kind, "model__max_length": 24}
    size = {"sgd_norm": 0.5, "rate": 0.5}
    whole = tiny.program(tiny.config(**drawn), **size)
    batch, state = tiny.batch(), whole.state
    expected, sums = whole.step(state, batch)
    split = tiny.program(tiny.config(train__num_microbatches=4, **drawn), **size)
    after, found = split.step(state, batch)
    tree_close(after.params, expected.params, rtol=1e-5, atol=1e-6)
    tree_close(found, sums, rtol=1e-5)
    if kind == "randomized":  # its draws run a loop
        mesh = make_mesh(MeshConfig(2, 4))
        assert mesh is not None
        with jax.set_mesh(mesh):
            spread = tiny.program(tiny.config(**drawn), mesh, **size)
            found = spread.step(spread.state, put_batch(mesh, batch))[1]
        tree_close(found, sums, rtol=1e-5)
    later = dataclasses.replace(state, step=state.step + 1)
    assert whole.step(later, batch)[1]["loss"] != sums["loss"]


def test_dropout_differs_between_steps_and_between_rows():
    program = tiny.program(tiny.config(**tiny.DROPOUT))
    same = {name: np.repeat(rows[:1], 8, 0) for name, rows in tiny.batch().items()}
    later = dataclasses.replace(program.state, step=program.state.step + 1)
    assert program.step(program.state, same)[1]["loss"] != program.step(later, same)[1]["loss"]
    first, second = (tiny.keep_rows(same, np.arange(8) == row) for row in (0, 1))
    a, b = program.step(program.state, first)[1], program.step(program.state, second)[1]
    assert a["weight"] == b["weight"]
    assert a["loss"] != b["loss"]


def test_a_batch_of_padding_is_loss_zero_and_no_nan():
    program = tiny.program(tiny.config(train__num_microbatches=2), sgd_norm=1.0)
    empty = {name: np.zeros_like(rows) for name, rows in tiny.batch().items()}
    state, metrics = program.step(program.state, empty)
    values = {name: float(value) for name, value in metrics.items() if name != "data"}
    assert values["loss"] == values["weight"] == values["grad_norm"] == values["skipped"] == 0
    tree_equal(state.params, program.state.params)


def test_a_microbatch_of_padding_counts_for_nothing():
    half = tiny.keep_rows(tiny.batch(), np.arange(8) % 2 == 0)
    split = tiny.program(tiny.config(train__num_microbatches=2), sgd_norm=1.0)
    whole = tiny.program(tiny.config(), sgd_norm=1.0)
    (after, sums), (expected, expected_sums) = (p.step(p.state, half) for p in (split, whole))
    tree_close(sums, expected_sums, rtol=1e-5)
    tree_close(after.params, expected.params, rtol=1e-5, atol=1e-7)


def test_an_update_that_is_not_finite_is_skipped_and_counted():
    program = tiny.program(tiny.config())
    good, bad = tiny.batch(), tiny.batch()
    bad["weights"] = np.full_like(bad["weights"], np.inf)
    state, _ = program.step(program.state, good)
    poisoned, metrics = program.step(state, bad)
    assert not np.isfinite(float(metrics["grad_norm"]))
    tree_equal((poisoned.params, poisoned.opt_state), (state.params, state.opt_state))
    assert int(poisoned.step) == 2
    poisoned, metrics = program.step(poisoned, bad)
    assert (int(metrics["skipped"]), int(metrics["skipped_total"])) == (2, 2)
    healed, metrics = program.step(poisoned, good)
    assert (int(metrics["skipped"]), int(metrics["skipped_total"])) == (0, 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(healed))
    assert any(
        (new != old).any()
        for new, old in zip(
            jax.tree.leaves(healed.params), jax.tree.leaves(state.params), strict=True
        )
    )


def test_one_update_by_hand():
    """SGD on the mean over all weighted tokens, at the rate for step 1 (not 0)."""
    cfg, batch = tiny.config(), tiny.batch()
    graphdef, _ = nnx.split(build(cfg.model))

    def mean_loss(params):
        model = nnx.merge(graphdef, params)
        logits_BLV = model(batch["tokens"], batch["segment_ids"], batch["positions"]).logits
        total, weight = cross_entropy(logits_BLV, batch["targets"], batch["weights"])
        return total / weight

    program = tiny.program(cfg, sgd_norm=100.0)
    loss, grads = jax.jit(jax.value_and_grad(mean_loss))(program.state.params)
    state, metrics = program.step(program.state, batch)
    rate = cfg.schedule.peak_value / cfg.schedule.warmup_steps
    np.testing.assert_allclose(metrics["learning_rate"], rate, rtol=1e-6)
    expected = jax.tree.map(lambda p, g: p - rate * g, program.state.params, grads)
    tree_close(state.params, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(metrics["loss"] / metrics["weight"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"], optax.tree.norm(grads), rtol=1e-5)


def test_bfloat16_activations_leave_parameters_float32():
    program = tiny.program(tiny.config(compute_dtype="bfloat16"))
    exact = tiny.program(tiny.config())
    state, metrics = program.step(program.state, tiny.batch())
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    full = exact.step(exact.state, tiny.batch())[1]["loss"]
    assert metrics["loss"] != full
    assert metrics["loss"].dtype == jnp.float32
    np.testing.assert_allclose(metrics["loss"], full, rtol=2e-2)


PINNED = {"loss": 2.3857531547546387, "grad_norm": 0.8807985782623291}


def test_five_steps_compile_once_and_are_pinned():
    """The numbers of training are a promise to whoever compares runs across versions."""
    program = tiny.program(tiny.config(train__num_microbatches=2, **tiny.DROPOUT))
    state = program.state
    for step in range(5):
        state, metrics = program.step(state, tiny.batch(step))
    assert program.step._cache_size() == 1
    found = {
        "loss": float(metrics["loss"] / metrics["weight"]),
        "grad_norm": float(metrics["grad_norm"]),
    }
    for name, expected in PINNED.items():
        assert found[name] == pytest.approx(expected, rel=1e-5), (
            f"{name} after five steps is {found[name]!r}, pinned {expected!r}: the initial values, "
            "the dropout draws, the model or the optimizer changed. If that was meant, write the "
            "new number here and say so in CHANGELOG.md (old runs no longer compare); if not, "
            "find the change."
        )
