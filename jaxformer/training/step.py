"""One optimizer update as one jitted function of (state, batch).

Losses, gradients and token counts are summed over the microbatches and divided once, so that a
batch gives the same update however it is split. What layers add to the loss has weights of its own,
and there is one backward pass all the same: each sum is differentiated in units of the objective's
weight, for which the weights of the whole batch are known before. An update that is not finite is
skipped: the parameters, their average and the optimizer state stay, the step counts on (its batch
is consumed).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from jaxformer.config import ObjectiveConfig, RunConfig
from jaxformer.losses import accuracy, cross_entropy, distillation
from jaxformer.models import forward, sums_over
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.routing import metrics as routing_metrics
from jaxformer.sharding import constrain, replicated
from jaxformer.training.average import average
from jaxformer.training.chain import digest
from jaxformer.training.freeze import hold
from jaxformer.training.guard import spikes
from jaxformer.training.state import TrainState, shardings_of

Batch = dict[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight)
Weights = dict[str, jax.Array]  # of each loss
Seen = dict[str, Any]  # sums that nothing is trained on: over what is supervised, of the routing
StepFn = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


def make_train_step(
    graphdef: Any,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    cfg: RunConfig,
    teacher_graphdef: Any = None,
) -> StepFn:
    """Returns step(state, batch) -> (state, metrics), not yet jitted.

    Where the objective has a teacher, which `teacher_graphdef` describes, the step takes its
    parameters as a third argument, `teacher`.

    Metrics are float32 scalars, sums where a mean is meant: `loss` (cross-entropy without smoothing
    or other terms, summed over what is supervised), `weight`, `correct`, `total` (the value that
    was minimised), `grad_norm` before clipping, `learning_rate`, `skipped` in a row and
    `skipped_total`, `spikes` where a guard counts them. `data`, uint32[2], is the batch's digest.
    Of mixtures of experts means over their layers: names with a '/', see nn/routing.py.
    Where several processes run, each puts the signal that it was sent into its devices' part of
    batch['stop']: `stop` is the greatest.
    """

    if bool(cfg.objective.distillation.teacher) != (teacher_graphdef is not None):
        raise ValueError("a teacher's graphdef goes with objective.distillation.teacher")

    def step(
        state: TrainState, batch: Batch, teacher: Any = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        batch = dict(batch)
        asked = {"stop": batch.pop("stop").max()} if "stop" in batch else {}
        key = jax.random.fold_in(jax.random.key(cfg.seed), state.step)
        rows = jnp.arange(batch["tokens"].shape[0])
        taught = None if teacher_graphdef is None else nnx.merge(teacher_graphdef, teacher)
        losses, seen, grads = _accumulate(
            graphdef, state.params, batch | {"row": rows}, key, cfg, taught
        )
        total = sum(_divide(*losses[name]) for name in losses)
        unit = _unit({name: weight for name, (_, weight) in losses.items()})
        gradient = hold(jax.tree.map(lambda g: g / unit, grads), cfg.train.freeze)
        routing = seen.pop("routing", None)
        grad_norm = optax.tree.norm(gradient)
        updates, opt_state = tx.update(gradient, state.opt_state, state.params)
        updates = hold(updates, cfg.train.freeze)
        rate = jnp.asarray(schedule(state.step + 1), jnp.float32)
        params = optax.apply_updates(state.params, jax.tree.map(lambda u: rate * u, updates))
        ok = jnp.isfinite(grad_norm) & jnp.isfinite(total)
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)  # noqa: E731
        made = state.step + 1 - state.skipped_total
        new = TrainState(
            step=state.step + 1,
            params=keep(params, state.params),
            opt_state=keep(opt_state, state.opt_state),
            ema=keep(average(state.ema, params, made, cfg.train.ema), state.ema),
            skipped=jnp.where(ok, 0, state.skipped + 1),
            skipped_total=state.skipped_total + jnp.where(ok, 0, 1),
        )
        metrics = {
            **seen,
            "weight": losses["objective"][1],
            "total": total,
            "grad_norm": grad_norm,
            "learning_rate": rate,
            "skipped": new.skipped,
            "skipped_total": new.skipped_total,
            "data": digest(batch),
            **spikes(new.opt_state),
            **({} if routing is None else routing_metrics(routing)),
            **asked,
        }
        return new, metrics

    return step


def jit_train_step(
    graphdef: Any,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    cfg: RunConfig,
    abstract: TrainState,
    mesh: Mesh | None,
    teacher_graphdef: Any = None,
) -> Any:
    """The step jitted as training runs it: the state stays where `abstract` says, in place."""
    outputs = shardings_of(abstract), replicated(mesh)
    step = make_train_step(graphdef, tx, schedule, cfg, teacher_graphdef)
    return jax.jit(step, donate_argnums=0, out_shardings=outputs)


def _accumulate(
    graphdef: Any, params: Any, batch: Batch, key: jax.Array, cfg: RunConfig, teacher: Any
) -> tuple[Sums, Seen, dict[str, Any]]:
    """Sums (losses, what was seen, gradients in units of `_unit`) over the microbatches."""
    parts = cfg.train.num_microbatches

    def part(batch: Batch, weights: Weights | None = None) -> tuple[Sums, Seen, dict[str, Any]]:
        batch = {name: constrain(rows, "batch") for name, rows in batch.items()}
        return _gradients(graphdef, params, batch, key, cfg.objective, teacher, weights)

    if parts == 1:
        return part(batch)
    # Row r goes to microbatch r % parts, so each keeps rows of every device.
    split = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0), batch
    )
    shapes = jax.eval_shape(part, jax.tree.map(lambda x: x[0], split))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    weights = None
    if len(shapes[0]) > 1:  # of the whole batch; they need no layer, so XLA runs none for them
        weights = _run(graphdef, params, batch, key, cfg.objective, None)[1][0]
    total, _ = jax.lax.scan(
        lambda carry, rows: (jax.tree.map(jnp.add, carry, part(rows, weights)), None), zeros, split
    )
    return total


def _gradients(
    graphdef: Any,
    params: Any,
    batch: Batch,
    key: jax.Array,
    objective: ObjectiveConfig,
    teacher: Any,
    whole: Weights | None,
) -> tuple[Sums, Seen, Any]:
    """Differentiates the losses' sums, each times unit / its weight in the `whole` batch.

    Divided by the unit these are the gradients of the means. None: this is the whole batch.
    `teacher` is a model that nothing is differentiated by, read as in an evaluation, or None.
    """
    taught = None if teacher is None else (teacher, forward(teacher, batch))
    sums, backward, (weights, seen) = jax.vjp(
        lambda params: _run(graphdef, params, batch, key, objective, taught), params, has_aux=True
    )
    whole = weights if whole is None else whole
    unit = _unit(whole)
    scales = {name: _divide(unit, whole[name]) for name in sums} | {"objective": jnp.float32(1)}
    (grads,) = backward(scales)
    return {name: (sums[name], weights[name]) for name in sums}, seen, grads


def _run(
    graphdef: Any,
    params: Any,
    batch: Batch,
    key: jax.Array,
    objective: ObjectiveConfig,
    taught: Any,
) -> tuple[dict[str, jax.Array], tuple[Weights, Seen]]:
    """(sums of the losses, (their weights, what was seen)) of a forward pass.

    `taught` is a teacher and what it gave out for the batch, or None.
    """
    model = nnx.merge(graphdef, params)
    out = forward(model, batch, key=RowKey(key, batch["row"]))
    from_teacher = objective.distillation

    def score(
        logits: jax.Array, targets: jax.Array, weights: jax.Array, *theirs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], Seen]:
        supervised = logits, targets, weights
        minimised = cross_entropy(
            *supervised,
            label_smoothing=objective.label_smoothing,
            smoothing=objective.smoothing,
            z_loss=objective.z_loss,
        )
        loss, correct = cross_entropy(*supervised)[0], accuracy(*supervised)[0]
        seen = {"loss": loss, "correct": correct}
        for their in theirs:
            apart, _ = distillation(logits, their, weights, from_teacher.temperature)
            share = from_teacher.alpha
            minimised = (1 - share) * minimised[0] + share * apart, minimised[1]
            seen["distillation"] = apart
        return minimised, seen

    minimised, seen = sums_over(model, out, batch["targets"], batch["weights"], score, taught)
    if out.routing is not None:
        seen |= {"routing": out.routing}
    losses = {"objective": minimised, **out.losses}
    sums = {name: loss[0] for name, loss in losses.items()}
    return sums, ({name: loss[1] for name, loss in losses.items()}, seen)


def _unit(weights: Weights) -> jax.Array:
    """The objective's weight, 1 where nothing is supervised."""
    return jnp.where(weights["objective"] == 0, 1.0, weights["objective"])


def _divide(total: jax.Array, weight: jax.Array) -> jax.Array:
    """total / weight, and 0 where the weight is 0."""
    return jnp.where(weight == 0, 0.0, total / jnp.where(weight == 0, 1.0, weight))
