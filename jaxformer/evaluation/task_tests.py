"""Tests of a sampled task: one program for all lengths, on the device alone or batch by batch."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.data.tasks.sampler import Batch, Sampler, sample_tests
from jaxformer.evaluation.evaluators import Evaluator, Sums

Shape = tuple[int, int, int]  # rows of a batch, longest length, inputs of a row


def length_sums(
    evaluators: tuple[Evaluator, ...],
    graphdef: Any,
    sampler: Sampler,
    shape: Shape,
    num_examples: int,
    params: Any,
    seed: jax.Array | int,
    length: jax.Array | int,
) -> Sums:
    """Sums over `num_examples` tests of one length: a pure function, `params`, `seed` and `length`
    traced, so that one program serves all lengths, or under vmap the parameters of many seeds.

    `shape` is from `shape_of`. The tests are those that `eval.py` has by the same seed.
    """
    model = nnx.merge(graphdef, params)

    def part(number: jax.Array) -> Sums:
        batch = tests(sampler, shape, num_examples, seed, length, number)
        return {k: v for e in evaluators for k, v in e.sums(model, batch).items()}

    parts = jax.lax.map(part, jnp.arange(-(-num_examples // shape[0])))
    return jax.tree.map(lambda sums: sums.sum(0), parts)


def tests(
    sampler: Sampler,
    shape: Shape,
    num_examples: int,
    seed: jax.Array | int,
    length: jax.Array | int,
    number: jax.Array | int,
) -> Batch:
    """Batch `number` of the tests of a length; rows beyond the last test have weight 0."""
    batch = sample_tests(sampler, shape, seed, length, number * shape[0])
    counted_B1 = (batch["rows"] < num_examples)[:, None]
    return batch | {"weights": batch["weights"] * counted_B1}


def shape_of(sampler: Sampler, batch_size: int, longest: int) -> Shape:
    """The shape of batches that hold tests of any length up to `longest`."""
    return batch_size, longest, sampler.most_inputs(longest)


@dataclasses.dataclass(frozen=True)
class TaskTests:
    """Tests of one length, in batches whose shape all lengths share."""

    sampler: Sampler
    length: int
    num_examples: int
    seed: int
    longest: int  # length of all that are evaluated

    def batches(self, batch_size: int, bound: int) -> Iterator[Mapping[str, np.ndarray]]:
        del bound  # lengths that do not fit are not evaluated
        shape = shape_of(self.sampler, batch_size, self.longest)
        sizes = self.sampler, shape, self.num_examples
        for number in range(-(-self.num_examples // batch_size)):
            yield _tests(*sizes, np.uint32(self.seed), np.int32(self.length), np.int32(number))


_tests = jax.jit(tests, static_argnums=(0, 1, 2))
