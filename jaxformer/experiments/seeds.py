"""Trains the seeds of an arm together: many steps of all of them in one call.

Each cell becomes the run directory that train.py would have made: config, metrics, a checkpoint of
the last step. In between, one checkpoint holds the whole group, below OUT/groups, so that a group
goes on with all its seeds at one step, in the program it was begun in. Times are the group's.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoint import Checkpoints
from jaxformer.data import Data, open_data
from jaxformer.distributed import say
from jaxformer.errors import Preempted, TrainingFailed
from jaxformer.experiments.cells import Job
from jaxformer.experiments.feed import Feed
from jaxformer.experiments.programs import make_programs, take, validate
from jaxformer.experiments.results import folder_of
from jaxformer.models import abstract_params, build
from jaxformer.training.average import weights
from jaxformer.training.chain import Chain, as_hex
from jaxformer.training.clock import Clock
from jaxformer.training.log import Log, Progress
from jaxformer.training.metrics import Meter, MetricsWriter, flops_per_position, peak_flops
from jaxformer.training.signals import Stop, stop_on_signal
from jaxformer.training.start import describe_run
from jaxformer.training.workdir import check_restart, disk_errors, locked, save_config


@dataclasses.dataclass
class Member:
    """A cell while its group trains; `failure` says why it no longer counts."""

    job: Job
    data: Data
    log: Log
    failure: str = ""

    def report(self, first: int, metrics: dict[str, np.ndarray], count: int) -> None:
        """Tells of `count` steps from `first` on; metrics are [steps] and further axes."""
        if self.failure:
            return
        try:
            for turn in range(count):
                self.log.step(first + turn, {name: m[turn] for name, m in metrics.items()})
            self.log.flush()
        except TrainingFailed as error:
            self.failure = str(error)


def train_seeds(
    jobs: Sequence[Job], out: Path, folder: Path, progress: Progress | None = None
) -> dict[str, str]:
    """Trains cells that differ in their seeds to their end, from the newest checkpoint in `folder`.

    Returns why cells failed, by their name; the others are not stopped by it. Raises Preempted
    after a signal, all being saved.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(disk_errors(out))
        stop = held.enter_context(stop_on_signal())
        folders = [held.enter_context(locked(folder_of(out, job.cell))) for job in jobs]
        for job, own in zip(jobs, folders, strict=True):
            check_restart(own, job.config)
        seeds = Seeds(jobs, folders, folder, held, progress)
        seeds.train(stop)
        return {m.job.cell.name: m.failure for m in seeds.members if m.failure}


class Seeds:
    """The members, their programs, and the state of all of them."""

    def __init__(
        self,
        jobs: Sequence[Job],
        folders: Sequence[Path],
        folder: Path,
        held: contextlib.ExitStack,
        progress: Progress | None,
    ):
        self.cfg, self.folders, self.clock = jobs[0].config, folders, Clock()
        held.enter_context(self.clock.watching_compiler())
        every = self.cfg.train
        self.saved = Checkpoints(folder, every.keep_latest)
        held.enter_context(contextlib.closing(self.saved))
        newest = self.saved.newest()
        self.before = self.saved.meta(newest) if newest is not None else {}
        self.step = self.before.get("step", 0)
        self.losses: dict[str, float] = self.before.get("losses", {})  # of the newest checkpoint
        data = [open_data(job.config, own) for job, own in zip(jobs, folders, strict=True)]
        self.abouts = [describe_run(j.config, d) for j, d in zip(jobs, data, strict=True)]
        for job, own in zip(jobs, folders, strict=True):
            save_config(own, job.config)
        writers = [
            held.enter_context(contextlib.closing(MetricsWriter(own, self.step))) for own in folders
        ]
        dropped = writers[0].dropped.get("seconds", {})
        self.clock.resume(self.before.get("seconds", {}), dropped)
        flops = flops_per_position(self.cfg, abstract_params(build(self.cfg.model)))
        peak, chains = peak_flops(1), self.before.get("chains", {})
        self.meters = [Meter(flops, peak) for _ in jobs]
        self.members = []
        for job, own, writer, meter in zip(jobs, data, writers, self.meters, strict=True):
            chain, shown = Chain(chains.get(job.cell.name)), progress if job is jobs[0] else None
            log = Log(job.config, writer, meter, chain, self.clock, shown)
            failure = self.before.get("failures", {}).get(job.cell.name, "")
            self.members.append(Member(job, own, log, failure))
        self.feed = Feed([job.config for job in jobs], data, self.step)
        self.programs = make_programs(self.cfg, len(jobs), self.feed.sampler, self.feed.most_steps)
        self.seeds = np.array([job.config.seed for job in jobs], np.uint32)
        self.data_seeds = np.array([job.config.data_seed for job in jobs], np.uint32)
        self.state = self._start()

    def train(self, stop: Stop) -> None:
        """To the end, and a checkpoint in each cell's folder."""
        end, clock, steps = self.cfg.train.num_steps, self.clock, None
        batches: dict[str, np.ndarray] = {}
        if self.step < end:
            clock.to("data_wait")
            batches = self.feed.batches(self.step, self._count())
        while self.step < end and not all(member.failure for member in self.members):
            if stop.name:
                if self.step:
                    self._save({})
                self.saved.wait()
                raise Preempted(self.step, stop.name)
            count = self._count()
            arguments = self.state, self.seeds, self.data_seeds, batches, np.int32(count)
            if steps is None:
                clock.to("compile")
                steps = self.programs.steps.lower(*arguments).compile()
                for meter in self.meters:
                    meter.reset()
            clock.to("step")
            self.state, metrics = steps(*arguments)
            first, self.step = self.step + 1, self.step + count
            if self.step < end:  # made while the devices are at work
                batches = self.feed.batches(self.step, self._count())
            found = jax.device_get(metrics)
            for index, member in enumerate(self.members):
                member.report(first, {name: m[index] for name, m in found.items()}, count)
            self._evaluate_and_save()
        with clock.on("save"):
            self.saved.wait()
            self._save_cells()
        say(clock.summary())

    def _start(self) -> Any:
        """The state of the checkpoint, or a fresh one."""
        programs = self.programs
        if not self.before:
            return programs.start(self.seeds)
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=programs.sharding),
            jax.eval_shape(programs.start, self.seeds),
        )
        state = self.saved.restore(self.step, abstract)
        self.saved.set_aside()
        say(f"resuming {len(self.members)} seeds from step {self.step}")
        return state

    def _count(self) -> int:
        """Steps of the next call: up to the next line, evaluation or checkpoint."""
        every = self.cfg.train
        stops = [every.log_every, every.eval_every, every.checkpoint_every]
        ends = [(self.step // n + 1) * n for n in stops if n]
        return min(*ends, every.num_steps, self.step + self.feed.most_steps) - self.step

    def _evaluate_and_save(self) -> None:
        every, step, losses = self.cfg.train, self.step, {}
        due = step == every.num_steps or _due(step, every.checkpoint_every)
        if step == every.num_steps or _due(step, every.eval_every) or (due and every.keep_best):
            with self.clock.on("evaluation"):
                losses = self._evaluate()
        if due:
            with self.clock.on("save"):
                self._save(losses)
        for meter in self.meters:
            meter.reset()

    def _evaluate(self) -> dict[str, float]:
        """Validation losses by cell, of those that have not failed."""
        sources = [member.data.validation for member in self.members]
        params = weights(self.state, self.cfg.eval)
        found = validate(self.cfg, self.programs, params, sources)
        digests = jax.device_get(self.programs.digest(self.state.params))
        return {
            member.job.cell.name: member.log.evaluation(self.step, values, digest)
            for member, values, digest in zip(self.members, found, digests, strict=True)
            if not member.failure
        }

    def _save(self, losses: dict[str, float]) -> None:
        """The group's checkpoint; `losses` are this step's, where it was evaluated."""
        if self.step in self.saved.steps():
            return
        names = [member.job.cell.name for member in self.members]
        about = {
            "cells": names,
            "chains": {m.job.cell.name: m.log.chain.links for m in self.members},
            "failures": {m.job.cell.name: m.failure for m in self.members if m.failure},
            "losses": losses,
            "seconds": self.clock.seconds(),
        }
        self.losses = losses
        self.saved.save(self.step, self.state, about)
        if self.cfg.train.keep_best:
            self.saved.wait()
            self._save_cells()

    def _save_cells(self) -> None:
        """A checkpoint in the folder of each cell that has not failed, as train.py's at this step.

        What a killed process had saved already stays.
        """
        host, digests = jax.device_get((self.state, self.programs.digest(self.state.params)))
        every = self.cfg.train
        for index, member in enumerate(self.members):
            if member.failure:
                continue
            saved = Checkpoints(self.folders[index], every.keep_latest, every.keep_best)
            with contextlib.closing(saved):
                if self.step in saved.steps():
                    continue
                about = {"chain": member.log.chain.links, "seconds": self.clock.seconds()}
                about |= {"parameters": as_hex(digests[index]), "loader": {"step": self.step}}
                loss = self.losses.get(member.job.cell.name)
                saved.save(self.step, take(host, index), self.abouts[index] | about, loss)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
