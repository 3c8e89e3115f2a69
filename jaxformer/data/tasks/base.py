"""What a task is: prompts of any length, their targets, and how both are written.

A task numbers its words from 0. Its sampler is pure JAX: `length` may be traced, `room`, the
longest length there is room for, is static, and a problem is the same for every room.
"""

import dataclasses
import itertools
import string
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

LETTERS = tuple(string.ascii_lowercase)
DIGITS = tuple(string.digits)


class Problem(NamedTuple):
    """A prompt and its target as indices of words, right-padded with 0; under vmap many."""

    prompt: jax.Array  # int32[most_prompt(room)]
    prompt_length: jax.Array
    target: jax.Array  # int32[most_target(room)]
    target_length: jax.Array


class Ids(NamedTuple):
    """Position ids that a task couples: equal where tokens belong together, from 1 on."""

    prompt: jax.Array  # int32[most_prompt(room)]
    separator: jax.Array
    target: jax.Array  # int32[most_target(room)]


class About(NamedTuple):
    """What is said of a task rather than computed."""

    example: str  # 'prompt <sep> target', also where rows have no <sep>
    meaning: str  # of the target, in a few words
    length_is: str  # what the length counts, in the plural
    citation: str
    reads: tuple[str, ...] = ()  # fields of data.task that it reads, by the same names
    separator: bool = True
    smallest: int = 1  # length
    largest: int = 0  # length; 0: there is no largest


@dataclasses.dataclass(frozen=True)
class Task:
    """A task; hashable, so that jitted functions may take it as a static argument.

    Rows are `<s> prompt <sep> target </s>`, those of a task without `separator` one sequence
    `<s> prompt target </s>`; the target and </s> are supervised, and nothing else.
    """

    @property
    def about(self) -> About:
        raise NotImplementedError

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary, apart from <pad>, <s>, </s> and <sep>."""
        raise NotImplementedError

    def most_prompt(self, length: int) -> int:
        """The most tokens of a prompt of this length or a smaller one."""
        return length

    def most_target(self, length: int) -> int:
        """The same of a target, </s> apart."""
        return 1

    def num_prompts(self, length: int) -> float:
        """How many prompts a length has; where they are not equally likely, 1 / P(likeliest)."""
        raise NotImplementedError

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        """Draws a problem of a length from `smallest` to `room`."""
        raise NotImplementedError

    def solve(self, prompt: Sequence[str]) -> list[str]:
        """The target by the task's definition, in plain Python: the oracle of the sampler."""
        raise NotImplementedError

    def couple(self, problem: Problem) -> Ids | None:
        """The position ids of kind `coupled`, if the task has any."""
        return None

    def most_coupled(self, length: int) -> int:
        """The largest of them, 0 where there are none."""
        return 0


def names(count: int) -> tuple[str, ...]:
    """Words for `count` symbols: a … z, aa, ab, …, zz, aaa, …"""
    by_size = (itertools.product(LETTERS, repeat=size) for size in itertools.count(1))
    return tuple(map("".join, itertools.islice(itertools.chain.from_iterable(by_size), count)))


def numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def raw(key: jax.Array, *shape: int) -> jax.Array:
    """int32: 31 random bits each; modulo n they are uniform, up to n / 2^31.

    (`jax.random.randint` is exact, draws twice as many bits and takes three times as long to
    compile.) Entry i along the first axis is the same for every length of that axis.
    """
    return (jax.random.bits(key, shape, jnp.uint32) >> 1).astype(jnp.int32)


def symbols(key: jax.Array, room: int, size: int) -> jax.Array:
    """int32[room]: independent and uniform on 0 … size - 1."""
    return raw(key, room) % size


def distinct(key: jax.Array, room: int, size: int) -> jax.Array:
    """int32[room]: the first are a uniform draw without replacement from 0 … size - 1."""
    order = jnp.argsort(raw(key, size))[:room].astype(jnp.int32)
    return jnp.pad(order, (0, room - len(order)))


def places(key: jax.Array, count: jax.Array, length: jax.Array, room: int) -> jax.Array:
    """bool[room]: true at `count` of the first `length` places, all such sets equally likely."""
    order = jnp.argsort(jnp.where(jnp.arange(room) < length, raw(key, room), 2**31 - 1))
    return jnp.zeros(room, bool).at[order].set(jnp.arange(room) < count)


def first(values: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` values, then 0."""
    return jnp.where(jnp.arange(len(values)) < count, values, 0)


def backwards(values: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` values, last first, then 0."""
    index = jnp.arange(len(values))
    return first(values[jnp.clip(count - 1 - index, 0, len(values) - 1)], count)


def join(size: int, *parts: tuple[jax.Array | int, jax.Array | int]) -> tuple[jax.Array, jax.Array]:
    """(int32[size], length): the first n values of each part (values, n), one after another."""
    joined, at, index = jnp.zeros(size, jnp.int32), jnp.int32(0), jnp.arange(size)
    for values, count in parts:
        values = jnp.atleast_1d(jnp.asarray(values, jnp.int32))
        here = (index >= at) & (index < at + count)
        joined = jnp.where(here, values[jnp.clip(index - at, 0, len(values) - 1)], joined)
        at += count
    return joined, at


def answer(value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A target of one word."""
    return jnp.asarray(value, jnp.int32)[None], jnp.int32(1)
