"""How long a sweep will take, from a step of its first group that is compiled and run."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import numpy as np

from jaxformer.data import open_data
from jaxformer.experiments.feed import Feed
from jaxformer.experiments.groups import Group
from jaxformer.experiments.programs import make_programs

SECONDS = 2.0  # of steps that are timed


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of a group: seconds until its program is compiled, and for a step of all its seeds."""

    compile_seconds: float
    step_seconds: float


def measure(group: Group) -> Measured:
    """Trains a group for some steps; writes nothing."""
    configs = [job.config for job in group.jobs]
    cfg, data = configs[0], [open_data(config, None) for config in configs]
    feed = Feed(configs, data)
    programs = make_programs(cfg, len(configs), feed.sampler, feed.most_steps)
    seeds = np.array([config.seed for config in configs], np.uint32)
    data_seeds = np.array([config.data_seed for config in configs], np.uint32)
    began = time.perf_counter()
    state, count = programs.start(seeds), min(feed.most_steps, cfg.train.num_steps)
    arguments = seeds, data_seeds, feed.batches(0, count)
    steps = programs.steps.lower(state, *arguments, np.int32(1)).compile()
    state, _ = jax.block_until_ready(steps(state, *arguments, np.int32(1)))
    compiled, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - compiled) < SECONDS and done < cfg.train.num_steps:
        state, _ = jax.block_until_ready(steps(state, *arguments, np.int32(1)))
        done += 1
    return Measured(compiled - began, spent / done)


def describe(groups: Sequence[Group]) -> str:
    """One line: the time that these groups will take, if all are like the first."""
    if groups[0].jobs[0].config.data.streaming:
        return f"{len(groups)} runs, one after another; the steps of a stream are not timed"
    first, found = groups[0], measure(groups[0])
    share = found.step_seconds / len(first.jobs)  # of a seed
    work = sum(share * len(g.jobs) * g.jobs[0].config.train.num_steps for g in groups)
    total = work + found.compile_seconds * len(groups)
    each = f"{len(first.jobs)} seeds" if len(first.jobs) > 1 else "one seed"
    return (
        f"training takes about {duration(total)}: {len(groups)} programs, of which the first "
        f"({first.title}) compiled in {found.compile_seconds:.0f} s and takes "
        f"{1000 * found.step_seconds:.1f} ms for a step of {each}; evaluation is not counted"
    )


def duration(seconds: float) -> str:
    """In words, from seconds to hours."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{max(1, round(seconds))} s"
