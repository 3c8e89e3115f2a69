"""Updates of models with experts: whatever the split, in one backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.losses import cross_entropy
from jaxformer.models import build, forward
from jaxformer.nn.dropout import RowKey
from tests.training import tiny

ROWS = 8
MOE = tiny.DROPOUT | {
    "model__moe__num_experts": 4,
    "model__moe__balance_weight": 0.5,
    "model__moe__z_weight": 0.1,
    "model__moe__jitter": 0.2,
    "model__moe__capacity_factor": 0.75,
    "model__moe__balance_over": "row",
}
SUMS = ("loss", "weight", "total", "grad_norm")


def batch(step=0):
    """Weights that are no multiple of the number of real tokens: the losses' weights differ."""
    made = tiny.batch(step, ROWS)
    rows = np.arange(ROWS)[:, None]
    return made | {"weights": made["weights"] * (rows % 3).astype(np.float32)}


def update(cfg):
    program = tiny.program(cfg, sgd_norm=0.5, rate=0.5)
    return program.step(program.state, batch())


@pytest.mark.parametrize("changes", [{}, {"model__scan_layers": True, "model__num_layers": 2}])
def test_any_number_of_microbatches_gives_one_update(changes):
    found = [
        update(tiny.config(**(MOE | changes), train__num_microbatches=parts)) for parts in (1, 4)
    ]
    (one, metrics), (four, others) = found
    for name in SUMS:
        np.testing.assert_allclose(metrics[name], others[name], rtol=1e-5, err_msg=name)
    told = [name for name in metrics if name.startswith("experts/")]
    assert len(told) == 4
    for name in told:
        np.testing.assert_allclose(metrics[name], others[name], rtol=1e-5, err_msg=name)
    assert 0 < metrics["experts/dropped"] < 0.5
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one.params, four.params
    )


def test_a_balance_over_the_batch_is_each_microbatch_s():
    """Where exactness ends: the mean of products is not the product of means; all else is equal."""
    over = {"model__moe__balance_over": "batch"}
    (_, one), (_, four) = (
        update(tiny.config(**(MOE | over), train__num_microbatches=parts)) for parts in (1, 4)
    )
    np.testing.assert_allclose(one["loss"], four["loss"], rtol=1e-5)
    np.testing.assert_allclose(one["experts/load_cv"], four["experts/load_cv"], rtol=1e-5)
    assert one["experts/balance"] < four["experts/balance"]
    assert abs(one["total"] / four["total"] - 1) > 1e-4  # ten times what is equal elsewhere


def test_the_update_is_that_of_the_sum_of_means():
    """By jax.grad of the whole, in 4 microbatches."""
    cfg = tiny.config(**MOE, train__num_microbatches=4)
    program, rows = tiny.program(cfg, sgd_norm=1e9, rate=1.0), batch()
    definition, _ = nnx.split(build(cfg.model))
    key = RowKey(jax.random.fold_in(jax.random.key(cfg.seed), 0), jnp.arange(ROWS))

    def total(params):
        out = forward(nnx.merge(definition, params), rows, key=key)
        loss, weight = cross_entropy(out.logits, rows["targets"], rows["weights"])
        added = [loss / weight for loss, weight in out.losses.values()]
        assert len(added) == 2
        return loss / weight + sum(added)

    value, gradient = jax.jit(jax.value_and_grad(total))(program.state.params)
    state, metrics = program.step(program.state, rows)
    np.testing.assert_allclose(metrics["total"], value, rtol=1e-5)
    moved = jax.tree.map(lambda a, b: a - b, program.state.params, state.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), moved, gradient
    )


def products(cfg):
    """Matrix products in the compiled step."""
    program = tiny.program(cfg)
    text = program.step.lower(program.state, batch()).compile().as_text()
    return sum(text.count(name) for name in (" dot(", "matmul", "ynn"))


@pytest.mark.parametrize("scan", [False, True])
def test_losses_of_layers_cost_no_pass_of_their_own(scan):
    """One product a layer of their own, f · P: in several microbatches too, none for weights."""
    cfg = MOE | {"train__num_microbatches": 2, "model__scan_layers": scan, "model__num_layers": 2}
    without = {"model__moe__balance_weight": 0.0, "model__moe__balance_over": "batch"}
    without |= {"model__moe__z_weight": 0.0}
    fewest = products(tiny.config(**(cfg | without)))
    assert fewest > 10
    assert products(tiny.config(**cfg)) - fewest == (1 if scan else 2)


def test_nothing_supervised_leaves_the_layers_losses():
    """Their weights are real tokens, which may be there where no target counts."""
    cfg = tiny.config(**MOE)
    program, rows = tiny.program(cfg, sgd_norm=1e9, rate=1.0), batch()
    rows |= {"weights": np.zeros_like(rows["weights"])}
    state, metrics = program.step(program.state, rows)
    assert metrics["loss"] == metrics["weight"] == 0
    assert metrics["total"] > 0.5
    assert np.isfinite(metrics["grad_norm"])
    router = lambda tree: tree["layers"][0]["feed_forward"]["router"]["kernel"]  # noqa: E731
    assert (router(state.params) != router(program.state.params)).any()
