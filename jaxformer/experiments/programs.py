"""The compiled programs of a group: one run's functions over all its seeds at once.

A group's arrays have the seeds as their first axis, in which nothing is ever summed: what a seed
computes depends on it alone. With several devices each takes its share of the seeds.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from jaxformer.config import RunConfig
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.packing import RowSource
from jaxformer.data.tasks.sampler import Sampler, sample_batch
from jaxformer.evaluation.evaluators import Sums, total_sums, validator
from jaxformer.models import abstract_params, build, init
from jaxformer.sharding import replicated
from jaxformer.training.chain import digest
from jaxformer.training.freeze import check_frozen
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import TrainState, new_state
from jaxformer.training.step import make_train_step

AXIS = "seeds"
Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Programs:
    """Jitted functions of arrays over the seeds; see `make_programs`."""

    mesh: Mesh | None
    start: Callable[[Any], TrainState]
    steps: Any  # jitted: it is compiled apart from its first call
    sums: Callable[[Any, Arrays], Sums]
    digest: Callable[[Any], jax.Array]

    @property
    def sharding(self) -> Sharding:
        """Of a group's arrays."""
        if self.mesh is None:
            return replicated(None)
        return NamedSharding(self.mesh, PartitionSpec(AXIS))


def make_programs(
    cfg: RunConfig, num_seeds: int, sampler: Sampler | None, most_steps: int
) -> Programs:
    """The programs of `num_seeds` runs of a config, whatever seeds are in it.

    start(seeds uint32[N]) -> state. steps(state, seeds, data_seeds, batches, count) -> (state,
    metrics [N, most_steps]): `count` updates as train.py makes them, the rest of the metrics is 0;
    the state is donated. The batch of a step is drawn in place by the sampler of a task, or is
    `batches` [N, most_steps, B, L] at its turn. sums(params, batch) are those of the validation,
    digest(params) is uint32[N, 2].
    """
    module = build(cfg.model, cfg.compute_dtype)
    check_frozen(abstract_params(module), cfg.train.freeze)
    graphdef, _ = nnx.split(module)
    tx, schedule = make_optimizer(cfg)
    mesh = seed_mesh(num_seeds)

    def start(seed: jax.Array) -> TrainState:
        params = init(cfg.model, jax.random.key(seed))
        return new_state(params, tx, ema=cfg.train.ema.decay > 0)

    def steps(
        state: TrainState, seed: jax.Array, data_seed: jax.Array, batches: Arrays, count: jax.Array
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        seeded = dataclasses.replace(cfg, seed=seed)  # traced: all seeds share the program
        step = make_train_step(graphdef, tx, schedule, seeded)

        def batch(turn: jax.Array, state: TrainState) -> dict[str, jax.Array]:
            if sampler is not None:
                return sample_batch(sampler, cfg.train.batch_size, data_seed, state.step)
            return {name: rows[turn] for name, rows in batches.items()}

        def one(turn: jax.Array, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
            state, seen = carry
            state, metrics = step(state, batch(turn, state))
            return state, jax.tree.map(lambda all_, m: all_.at[turn].set(m), seen, metrics)

        shapes = jax.eval_shape(lambda: step(state, batch(jnp.int32(0), state))[1])
        empty = jax.tree.map(lambda m: jnp.zeros((most_steps, *m.shape), m.dtype), shapes)
        # A loop and not a scan, so that `count` is no part of the compiled program.
        return jax.lax.fori_loop(0, count, one, (state, empty))

    def sums(params: Any, batch: Arrays) -> Sums:
        return validator(cfg).sums(nnx.merge(graphdef, params), batch)

    return Programs(
        mesh,
        over_seeds(start, mesh),
        over_seeds(steps, mesh, shared=1, donate=True),
        over_seeds(sums, mesh),
        over_seeds(digest, mesh),
    )


def over_seeds(
    function: Callable[..., Any], mesh: Mesh | None, shared: int = 0, donate: bool = False
) -> Any:
    """A function of one run as a jitted one of all; the last `shared` arguments are the same to
    all, `donate` gives away the first."""

    def of_all(*arguments: Any) -> Any:
        own = len(arguments) - shared
        many = jax.vmap(function, in_axes=(*[0] * own, *[None] * shared))
        if mesh is None:
            return many(*arguments)
        specs = (*[PartitionSpec(AXIS)] * own, *[PartitionSpec()] * shared)
        cut = jax.shard_map(
            many, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(AXIS), check_vma=False
        )
        return cut(*arguments)

    return jax.jit(of_all, donate_argnums=0 if donate else ())


def seed_mesh(num_seeds: int) -> Mesh | None:
    """As many devices as share the seeds out evenly; None for one."""
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if num_seeds % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,)) if count > 1 else None


def validate(
    cfg: RunConfig, programs: Programs, params: Any, sources: Sequence[RowSource]
) -> list[dict[str, Any]]:
    """What the training loop's evaluation finds of each seed, on its own validation rows."""
    streams = [evaluation_batches(s, cfg.eval.batch_size, cfg.eval.max_rows) for s in sources]
    parts = [
        programs.sums(params, stack(_filled(each))) for each in itertools.zip_longest(*streams)
    ]
    found = jax.device_get(parts)
    results = []
    for own in ([at(part, index) for part in found] for index in range(len(sources))):
        totals = total_sums(own)
        means = {name: total.mean for name, total in totals.items()}
        results.append(means | {"tokens": round(totals["loss"].weight)})
    return results


def stack(batches: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Batches as one with a new first axis."""
    return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def take(tree: Any, index: int) -> Any:
    """One seed's part of arrays of the host, on the first device."""
    return jax.device_put(at(tree, index), replicated(None))


def _filled(batches: Sequence[Arrays | None]) -> list[Arrays]:
    """Batches of zeros, which weigh nothing, for seeds that have no more."""
    some = next(batch for batch in batches if batch is not None)
    blank = {name: np.zeros_like(rows) for name, rows in some.items()}
    return [blank if batch is None else batch for batch in batches]


def at(tree: Any, index: int) -> Any:
    """One seed's part of arrays of the host."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
