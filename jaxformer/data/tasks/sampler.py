"""Rows of a task as a pure function of (data seed, number of the row), on host and device alike.

Where a length has enough prompts, a hash of the prompt says whether it is held out: training draws
again until it has one that is not, validation and tests until they have one that is. This does not
depend on any seed. Lengths with fewer prompts share them: they are `exhaustive`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.tasks.base import Problem, Task, join, raw

PAD, BOS, EOS, SEP = range(4)
FIRST_WORD = 4
TRAIN, VALIDATION, TEST = range(3)  # streams of random numbers
CLASSES = 8  # of prompts; one of them is held out
MIN_PROMPTS = 8192  # that a length must have for it
MOST_DRAWS = 512  # (7 / 8)^512 is nothing

Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Makes the rows of a run; hashable, so that jitted functions may take it as static.

    Training lengths are uniform on min_length … max_length. `num_examples` 0 draws new examples for
    ever, otherwise there are so many, in a new order in every epoch. Row = `width` inputs.
    """

    task: Task
    min_length: int
    max_length: int
    num_examples: int
    width: int
    add_bos: bool
    coupled: bool  # positions are those that the task couples

    def is_exhaustive(self, length: int) -> bool:
        """Whether tests of this length have prompts that training may have had too."""
        trained = self.min_length <= length <= self.max_length
        return trained and self.task.num_prompts(length) < MIN_PROMPTS

    def most_inputs(self, length: int) -> int:
        """Inputs of the longest row of a length: all its tokens but the last."""
        task = self.task
        return (
            task.most_prompt(length)
            + task.most_target(length)
            + self.add_bos
            + task.about.separator
        )

    def most_ids(self, length: int) -> int:
        """How many position ids rows of a length have, from 0 on."""
        return self.task.most_coupled(length) + 1 if self.coupled else self.most_inputs(length)

    def train_row(self, data_seed: jax.Array, number: jax.Array) -> Batch:
        """Training example `number`, counted over all epochs; arrays [width]."""
        key = stream(data_seed, TRAIN)
        if self.num_examples:
            epoch, place = number // self.num_examples, number % self.num_examples
            number = shuffled(place, self.num_examples, jax.random.fold_in(key, epoch + 1))
        return self._row_between(jax.random.fold_in(key, 0), number, held_out=False)

    def validation_row(self, data_seed: jax.Array, number: jax.Array) -> Batch:
        """As training rows, but for their prompts."""
        return self._row_between(stream(data_seed, VALIDATION), number, held_out=True)

    def test_row(
        self, seed: jax.Array, length: jax.Array, number: jax.Array, room: int, width: int
    ) -> Batch:
        """Test example `number` of a length up to `room`, in a row of `width` inputs."""
        key = jax.random.fold_in(jax.random.fold_in(stream(seed, TEST), length), number)
        return self._row(key, length, room, width, held_out=True)

    def _row_between(self, key: jax.Array, number: jax.Array, held_out: bool) -> Batch:
        keys = jax.random.split(jax.random.fold_in(key, number))
        length = self.min_length + raw(keys[0]) % (self.max_length - self.min_length + 1)
        return self._row(keys[1], length, self.max_length, self.width, held_out)

    def _row(
        self, key: jax.Array, length: jax.Array, room: int, width: int, held_out: bool
    ) -> Batch:
        problem, is_right = self._draw(key, length, room, held_out)
        row = make_row(self.task, problem, width, self.add_bos, self.coupled)
        return row | {"weights": row["weights"] * is_right}

    def _draw(
        self, key: jax.Array, length: jax.Array, room: int, held_out: bool
    ) -> tuple[Problem, jax.Array]:
        """A problem of the class asked for, and whether it is (else it must not be used)."""
        separate = [
            self.min_length <= n <= self.max_length and not self.is_exhaustive(n)
            for n in range(room + 1)
        ]
        if not any(separate):
            return self.task.sample(jax.random.fold_in(key, 0), length, room), jnp.bool(True)
        is_free = ~jnp.array(separate)[length]

        def draw(carry: tuple[jax.Array, Problem, jax.Array]) -> tuple:
            attempt = carry[0]
            problem = self.task.sample(jax.random.fold_in(key, attempt), length, room)
            is_right = is_free | (is_held_out(problem) == held_out)
            return attempt + 1, problem, is_right

        shapes = jax.eval_shape(lambda: self.task.sample(key, length, room))
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        start = jnp.int32(0), blank, jnp.bool(False)
        _, problem, is_right = jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[0] < MOST_DRAWS), draw, start
        )
        return problem, is_right


def sample_batch(
    sampler: Sampler, batch_size: int, data_seed: jax.Array | int, step: jax.Array | int
) -> Batch:
    """The training batch of a step: tokens, targets, segment_ids, positions int32[B, L], weights
    float32[B, L] and rows int32[B], the example numbers modulo 2**31.

    Seed and step may be traced: the loader and a scan over steps, vmapped over seeds, call this.
    """
    start = jnp.uint32(step) * jnp.uint32(batch_size)
    return sample_rows(sampler, batch_size, data_seed, start)


def sample_rows(
    sampler: Sampler, count: int, data_seed: jax.Array | int, start: jax.Array | int
) -> Batch:
    """Training examples `start` … start + count - 1: any slice of a batch, as a batch."""
    numbers = jnp.uint32(start) + jnp.arange(count, dtype=jnp.uint32)
    rows = jax.vmap(sampler.train_row, (None, 0))(jnp.uint32(data_seed), numbers)
    return rows | {"rows": (numbers & 0x7FFFFFFF).astype(jnp.int32)}


def sample_tests(
    sampler: Sampler,
    shape: tuple[int, int, int],
    seed: jax.Array | int,
    length: jax.Array | int,
    start: jax.Array | int = 0,
) -> Batch:
    """Test examples `start` … of a length, as a batch; shape = (batch size, room, width).

    All but the shape may be traced. They depend on neither run nor data seed.
    """
    batch_size, room, width = shape
    numbers = jnp.uint32(start) + jnp.arange(batch_size, dtype=jnp.uint32)
    one = functools.partial(sampler.test_row, room=room, width=width)
    batch = jax.vmap(one, (None, None, 0))(jnp.uint32(seed), jnp.int32(length), numbers)
    return batch | {"rows": numbers.astype(jnp.int32)}


def make_row(task: Task, problem: Problem, width: int, add_bos: bool, coupled: bool) -> Batch:
    """`<s> prompt <sep> target </s>` as inputs and targets; target and </s> have weight 1."""
    prompt, target = problem.prompt + FIRST_WORD, problem.target + FIRST_WORD
    lengths = (
        int(add_bos),
        problem.prompt_length,
        int(task.about.separator),
        problem.target_length,
        1,
    )

    def written(*parts: jax.Array | int) -> jax.Array:
        return join(width + 1, *zip(parts, lengths, strict=True))[0]

    tokens = written(BOS, prompt, SEP, target, EOS)
    index = jnp.arange(width)
    last = sum(lengths) - 1  # the first target is the token that follows this input:
    before = last - problem.target_length - 1
    is_input = index < last
    is_supervised = is_input & (index >= before)
    ids = index
    if coupled:
        coupling = task.couple(problem)
        assert coupling is not None
        ids = written(0, coupling.prompt, coupling.separator, coupling.target, 0)[:-1]
    return {
        "tokens": jnp.where(is_input, tokens[:-1], PAD),
        "targets": jnp.where(is_supervised, tokens[1:], PAD),
        "segment_ids": is_input.astype(jnp.int32),
        "positions": jnp.where(is_input, ids, 0).astype(jnp.int32),
        "weights": is_supervised.astype(jnp.float32),
    }


def is_held_out(problem: Problem) -> jax.Array:
    """Whether the prompt is of the class that training never has, whatever its padding."""
    powers = np.array(
        [pow(0x9E3779B1, i + 1, 2**32) for i in range(len(problem.prompt))], np.uint32
    )
    here = jnp.arange(len(problem.prompt)) < problem.prompt_length
    h = jnp.where(here, (problem.prompt.astype(jnp.uint32) + 1) * powers, 0).sum(dtype=jnp.uint32)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return (h ^ (h >> 16)) % CLASSES == 0


def shuffled(place: jax.Array, count: int, key: jax.Array) -> jax.Array:
    """uint32: where a random order of 0 … count - 1, drawn by `key`, has `place` (below it).

    A Feistel network over the next larger even number of bits, applied until it ends below
    `count`: no array of all places is made.
    """
    half = max(1, -(-(count - 1).bit_length() // 2))
    mask = jnp.uint32(2**half - 1)
    keys = jax.random.bits(key, (4,), jnp.uint32)

    def permute(x: jax.Array) -> jax.Array:
        left, right = x >> half, x & mask
        for k in keys:
            h = (right ^ k) * jnp.uint32(0x9E3779B1)
            h = (h ^ (h >> 15)) * jnp.uint32(0x85EBCA6B)
            left, right = right, left ^ ((h ^ (h >> 13)) & mask)
        return left << half | right

    return jax.lax.while_loop(lambda x: x >= count, permute, permute(jnp.uint32(place)))


def stream(seed: jax.Array, number: int) -> jax.Array:
    """The key of one of a seed's streams."""
    return jax.random.fold_in(jax.random.key(jnp.uint32(seed)), number)
