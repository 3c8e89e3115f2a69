"""The training loop: next batch, step, log the previous step, evaluate, save, stop."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import RunConfig, check_spread
from jaxformer.data import Data
from jaxformer.data.loader import Loader
from jaxformer.data.stream_loader import StreamLoader
from jaxformer.data.streams import RowStream
from jaxformer.distributed import is_alone, is_first, say, together
from jaxformer.errors import Preempted
from jaxformer.evaluation.evaluators import validation
from jaxformer.mesh import make_mesh, place
from jaxformer.models import build, init
from jaxformer.nn.kernels import check_kernel
from jaxformer.nn.positions import check_bounds
from jaxformer.sharding import check_batch, put_batch, resized, using
from jaxformer.training.agreement import check_same_start, check_same_step, notice, with_stop
from jaxformer.training.average import weights
from jaxformer.training.chain import Chain, as_hex, parameters_digest
from jaxformer.training.clock import Clock
from jaxformer.training.freeze import check_frozen
from jaxformer.training.log import Log, Progress
from jaxformer.training.metrics import Meter, MetricsWriter, flops_per_position, peak_flops
from jaxformer.training.optim import make_optimizer
from jaxformer.training.signals import Stop, stop_on_signal
from jaxformer.training.start import Places, describe_run, find_start, make_state
from jaxformer.training.state import TrainState, abstract_state
from jaxformer.training.step import jit_train_step
from jaxformer.training.teacher import load_teacher
from jaxformer.training.workdir import check_restart, disk_errors, locked, save_config


def train(
    cfg: RunConfig, data: Data, workdir: str | os.PathLike[str], *, progress: Progress | None = None
) -> int:
    """Trains to cfg.train.num_steps (cfg is resolved), from the newest checkpoint if there is one.

    Returns the last step. Raises UserError (bad input), Preempted (a signal came, all is saved) or
    TrainingFailed (too many updates in a row were not finite).
    """
    check_bounds(cfg)
    check_kernel(cfg.model.attention_kernel)
    with contextlib.ExitStack() as held:
        with together():
            path = held.enter_context(locked(workdir))
            held.enter_context(disk_errors(path))
            stop = held.enter_context(stop_on_signal())
            check_restart(path, cfg)
            mesh = make_mesh(cfg.mesh)
            check_spread(cfg, cfg.mesh.filled(jax.device_count()))
            check_batch(mesh, "train.batch_size", cfg.train.batch_size, cfg.train.num_microbatches)
        held.enter_context(using(mesh))
        return _train(cfg, data, path, mesh, stop, progress)


def _train(
    cfg: RunConfig, data: Data, workdir: Path, mesh: Mesh | None, stop: Stop, progress: Any
) -> int:
    end, every, clock = cfg.train.num_steps, cfg.train, Clock()
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    tx, schedule = make_optimizer(cfg)
    teacher = load_teacher(cfg, data)
    make_params = lambda: init(cfg.model, jax.random.key(cfg.seed))  # noqa: E731
    ema = cfg.train.ema.decay > 0
    abstract = abstract_state(make_params, tx, mesh, ema=ema)
    check_frozen(abstract.params, cfg.train.freeze)
    stored = abstract_state(make_params, tx, mesh, padded=False, ema=ema)
    with contextlib.ExitStack() as held:
        held.enter_context(clock.watching_compiler())
        saved = Checkpoints(workdir, every.keep_latest, every.keep_best)
        held.enter_context(contextlib.closing(saved))
        meta = describe_run(cfg, data) | {"teacher": teacher.fingerprint if teacher else ""}
        before = find_start(cfg, meta, workdir, saved)
        loader = before["loader"] if before else {"step": 0}
        start = loader["step"]
        check_same_start(start, meta)
        # What is refused before the config is there leaves the directory free for another.
        places = Places(abstract, stored)
        state = make_state(cfg, before, saved, places, make_params, tx) if start < end else None
        with together():
            if is_first():
                save_config(workdir, cfg)
        if state is None:
            say(f"{workdir} is finished: it has its {end} steps")
            return end
        flops = flops_per_position(cfg, stored.params)
        meter = Meter(flops, peak_flops(mesh.size if mesh else 1))
        writer = None
        with together():
            if is_first():
                writer = held.enter_context(contextlib.closing(MetricsWriter(workdir, start)))
        clock.resume(before.get("seconds", {}), writer.dropped.get("seconds", {}) if writer else {})
        taught = None if teacher is None else teacher.graphdef
        step = jit_train_step(graphdef, tx, schedule, cfg, abstract, mesh, taught)
        run = _Run(
            step=step if teacher is None else lambda *of: step(*of, teacher.params),
            digest=parameters_digest(stored.params, mesh),
            evaluate=validation(cfg, graphdef, data.validation, mesh),
            batches=held.enter_context(contextlib.closing(_loader(cfg, data, loader, mesh))),
            saved=saved,
            stored=stored,
            meta=meta,
            log=Log(cfg, writer, meter, Chain(before.get("chain")), clock, progress),
            meter=meter,
            clock=clock,
        )
        if stop.name and is_alone():
            raise Preempted(start, stop.name)  # before anything is compiled
        _steps(cfg, run, state, start, mesh, stop)
        with clock.on("save"):
            saved.wait()
        say(clock.summary())
    return end


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the loop works with."""

    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
    digest: Callable[[Any], jax.Array]
    evaluate: Callable[[Any], dict[str, float]]
    batches: Loader | StreamLoader
    saved: Checkpoints
    stored: TrainState
    meta: dict[str, Any]
    log: Log
    meter: Meter
    clock: Clock


def _steps(
    cfg: RunConfig, run: _Run, state: TrainState, start: int, mesh: Mesh | None, stop: Stop
) -> None:
    """The loop. All processes take the same way through it: see training/agreement.py."""
    end, every, log, clock = cfg.train.num_steps, cfg.train, run.log, run.clock
    for step in range(start + 1, end + 1):
        clock.to("data_wait")
        asked = time.perf_counter()
        batch = next(run.batches)
        run.meter.waited(time.perf_counter() - asked)
        clock.to("step" if step > start + 1 else "compile")
        state, metrics = run.step(state, with_stop(mesh, put_batch(mesh, batch), stop.name))
        log.step(step, metrics)
        if step == start + 1:
            log.flush()  # the first step's time is the compiler's
            clock.to("step")
            run.meter.reset()
        run.saved.check()
        check_same_step(cfg, run.batches, step)
        noticed = notice(step)
        stopping = stop.name if is_alone() else log.asked or noticed  # late, but in all alike
        due = step == end or _due(step, every.checkpoint_every)
        evaluates = step == end or _due(step, every.eval_every) or (due and every.keep_best)
        saves = due or stopping
        if not evaluates and not saves:
            continue
        log.flush()
        now, loss = run.digest(state.params), None
        if evaluates:
            with clock.on("evaluation"):
                loss = log.evaluation(step, run.evaluate(weights(state, cfg.eval)), now)
        if saves:
            with clock.on("save"):
                about = {"chain": log.chain.links, "seconds": clock.seconds()}
                about |= {"parameters": as_hex(now), "loader": run.batches.state()}
                run.saved.save(step, resized(state, run.stored), run.meta | about, loss)
        if stopping and step < end:
            run.saved.wait()
            raise Preempted(step, stopping)
        run.meter.reset()


def _loader(
    cfg: RunConfig, data: Data, state: dict[str, Any], mesh: Mesh | None
) -> Loader | StreamLoader:
    """Batches from the state of an earlier loader on."""
    size, part = cfg.train.batch_size, place(mesh)
    if isinstance(data.train, RowStream):
        return StreamLoader(data.train, size, state, *part)
    return Loader(data.train, size, cfg.data_seed, state["step"], *part)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
