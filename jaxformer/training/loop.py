"""The training loop: next batch, step, log the previous step, evaluate, save, stop."""

import contextlib
import importlib.metadata
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.loader import Loader
from jaxformer.errors import Preempted, TrainingFailed, UserError
from jaxformer.evaluation.evaluators import validation
from jaxformer.models import build, init
from jaxformer.nn.positions import check_bounds
from jaxformer.sharding import check_batch, make_mesh, put_batch
from jaxformer.training.metrics import Meter, MetricsWriter, flops_per_position, peak_flops
from jaxformer.training.optim import make_optimizer
from jaxformer.training.signals import Stop, stop_on_signal
from jaxformer.training.state import abstract_state, initialise, shardings_of
from jaxformer.training.step import make_train_step
from jaxformer.training.workdir import check_restart, locked, save_config


class Progress(Protocol):
    """Shows a run: called after every step with the values known so far."""

    def update(self, step: int, metrics: dict[str, Any]) -> None: ...


def train(
    cfg: RunConfig, data: Data, workdir: str | os.PathLike[str], *, progress: Progress | None = None
) -> int:
    """Trains to cfg.train.num_steps (cfg is resolved), from the newest checkpoint if there is one.

    Returns the last step. Raises UserError (bad input), Preempted (a signal came, all is saved) or
    TrainingFailed (too many updates in a row were not finite).
    """
    check_bounds(cfg)
    with locked(workdir) as path, stop_on_signal() as stop:
        check_restart(path, cfg)
        mesh = make_mesh(cfg.mesh)
        check_batch(mesh, "train.batch_size", cfg.train.batch_size, cfg.train.num_microbatches)
        with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
            return _train(cfg, data, path, mesh, stop, progress)


def _train(
    cfg: RunConfig, data: Data, workdir: Path, mesh: Mesh | None, stop: Stop, progress: Any
) -> int:
    end, every = cfg.train.num_steps, cfg.train
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    tx, schedule = make_optimizer(cfg)
    make_params = lambda: init(cfg.model, jax.random.key(cfg.seed))  # noqa: E731
    abstract = abstract_state(make_params, tx, mesh)
    with contextlib.closing(Checkpoints(workdir, every.keep_latest, every.keep_best)) as saved:
        if (saved.latest_step() or 0) > end:
            raise UserError(
                "train.num_steps",
                f"{end} is below step {saved.latest_step()} of the newest checkpoint",
                "raise it or use another --workdir",
            )
        start, state = saved.restore_latest(abstract) or (0, None)
        meta = {
            "config": cfg.to_dict(),
            "version": _version(),
            "tokenizer": data.tokenizer.fingerprint,
            "data": data.train.fingerprint,
        }
        if state is not None and saved.meta(start).get("data") != meta["data"]:
            raise UserError(
                f"workdir {workdir}",
                "holds a run on other data: what the data fields name has changed since",
                "bring it back or use another --workdir",
            )
        save_config(workdir, cfg)
        if start == end:
            _say(f"{workdir} is finished: it has its {end} steps")
            return end
        if state is None:
            state = initialise(make_params, tx, abstract)
        else:
            _say(f"resuming from step {start}")
        step_fn = jax.jit(
            make_train_step(graphdef, tx, schedule, cfg),
            donate_argnums=0,
            out_shardings=(shardings_of(abstract), None),
        )
        evaluate = validation(cfg, graphdef, data.validation, mesh)
        flops = flops_per_position(cfg, abstract.params)
        meter = Meter(flops, peak_flops(mesh.size if mesh else 1))
        with (
            contextlib.closing(MetricsWriter(workdir, start)) as writer,
            contextlib.closing(_loader(cfg, data, start)) as batches,
        ):
            log = _Log(cfg, writer, meter, progress)
            for step in range(start + 1, end + 1):
                asked = time.perf_counter()
                batch = next(batches)
                meter.waited(time.perf_counter() - asked)
                state, metrics = step_fn(state, put_batch(mesh, batch))
                log.step(step, metrics)
                stopping = stop.name  # read once: it may change at any time
                due = step == end or _due(step, every.checkpoint_every)
                evaluates = step == end or _due(step, every.eval_every) or (due and every.keep_best)
                saves = due or stopping
                if not evaluates and not saves:
                    continue
                log.flush()
                loss = log.evaluation(step, evaluate(state.params)) if evaluates else None
                if saves:
                    saved.save(step, state, meta, loss)
                if stopping and step < end:
                    saved.wait()
                    raise Preempted(step, stopping)
                meter.reset()
            saved.wait()
    return end


class _Log:
    """Reports each step once the next has been started, so that devices never wait for it."""

    def __init__(self, cfg: RunConfig, writer: MetricsWriter, meter: Meter, progress: Any):
        self._cfg, self._writer, self._meter, self._progress = cfg.train, writer, meter, progress
        length = cfg.data.target_length or cfg.data.length
        self._positions = cfg.train.batch_size * length  # of all processes together
        self._is_plain = cfg.objective.is_plain
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self._compiled = False
        self._known: dict[str, Any] = {}  # newest values of all kinds, for the progress line

    def step(self, step: int, metrics: dict[str, jax.Array]) -> None:
        self.flush()
        self._pending = step, metrics
        if not self._compiled:  # the first step's time is the compiler's
            self.flush()
            self._meter.reset()
            self._compiled = True

    def flush(self) -> None:
        """Reports the pending step; raises TrainingFailed after too many skipped updates."""
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        values = {name: value.item() for name, value in jax.device_get(metrics).items()}
        weight = values["weight"]
        self._meter.add(weight, self._positions)
        line = {
            "loss": values["loss"] / weight if weight else 0.0,
            "tokens": round(weight) if math.isfinite(weight) else weight,
            "accuracy": values["correct"] / weight if weight else 0.0,
            "grad_norm": values["grad_norm"],
            "learning_rate": values["learning_rate"],
            "skipped": values["skipped_total"],
        }
        if not self._is_plain:
            line["objective"] = values["total"]
        if step % self._cfg.log_every == 0 or step == self._cfg.num_steps:
            line |= self._meter.rates()
            self._writer.write(step, "train", line)
            self._meter.reset()
        self._show(step, line)
        if values["skipped"] >= self._cfg.max_skipped_steps:
            raise TrainingFailed(
                f"step {step}: the last {values['skipped']} updates were not finite "
                f"(loss {values['loss']:g}, gradient norm {values['grad_norm']:g}); "
                "lower schedule.peak_value or look at the data"
            )

    def evaluation(self, step: int, values: dict[str, Any]) -> float:
        """Writes the validation line and returns its loss."""
        self._writer.write(step, "eval", values)
        self._show(step, {"eval_loss": values["loss"]})
        return float(values["loss"])

    def _show(self, step: int, values: dict[str, Any]) -> None:
        self._known |= values
        if self._progress is not None:
            self._progress.update(step, self._known)


def _loader(cfg: RunConfig, data: Data, start: int) -> Loader:
    return Loader(
        data.train,
        cfg.train.batch_size,
        cfg.data_seed,
        start_step=start,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _version() -> str:
    try:
        return importlib.metadata.version("jaxformer")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
