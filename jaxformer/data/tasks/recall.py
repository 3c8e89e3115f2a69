"""Copy or recall what matters among what does not."""

import dataclasses
from collections.abc import Sequence
from math import perm

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import (
    DIGITS,
    About,
    Problem,
    Task,
    answer,
    distinct,
    first,
    join,
    names,
    places,
    raw,
    symbols,
)

BLANK = "_"
WRITE, READ, IGNORE = range(3)  # words w, r, i; the bits are 3 and 4


@dataclasses.dataclass(frozen=True)
class SelectiveCopy(Task):
    """n symbols at random places among n blanks, to be copied in their order."""

    symbols: int

    @property
    def about(self) -> About:
        example, meaning = "_ c _ a b _ <sep> c a b", "all but the blanks"
        return About(example, meaning, "symbols", "Gu and Dao 2023; Jing et al. 2019", ("symbols",))

    @property
    def words(self) -> tuple[str, ...]:
        return (*names(self.symbols), BLANK)

    def most_prompt(self, length: int) -> int:
        return 2 * length

    def most_target(self, length: int) -> int:
        return length

    def num_prompts(self, length: int) -> float:
        n = min(length, 64)
        return self.symbols**n * 2**n  # at least so many sets of places

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key)
        x = symbols(keys[0], room, self.symbols)
        is_symbol = places(keys[1], length, 2 * length, 2 * room)
        index = jnp.clip(jnp.cumsum(is_symbol) - 1, 0, room - 1)
        prompt = first(jnp.where(is_symbol, x[index], self.symbols), 2 * length)
        return Problem(prompt, 2 * length, first(x, length), length)

    def solve(self, prompt: Sequence[str]) -> list[str]:
        return [word for word in prompt if word != BLANK]


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(Task):
    """Distinct keys with digits, then one of the keys again: its digit follows."""

    symbols: int

    @property
    def about(self) -> About:
        example, meaning = "c 3 a 1 b 7 a <sep> 1", "the digit after that key"
        return About(
            example,
            meaning,
            "pairs",
            "Ba et al. 2016; Arora et al. 2023",
            ("symbols",),
            separator=False,
            largest=self.symbols,
        )

    @property
    def words(self) -> tuple[str, ...]:
        return (*names(self.symbols), *DIGITS)

    def most_prompt(self, length: int) -> int:
        return 2 * length + 1

    def num_prompts(self, length: int) -> float:
        n = min(length, 32)
        return perm(self.symbols, n) * 10**n * n

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        draws = jax.random.split(key, 3)
        keys, digits = distinct(draws[0], room, self.symbols), symbols(draws[1], room, 10)
        asked = raw(draws[2]) % length
        pairs = jnp.stack([keys, digits + self.symbols], axis=1).reshape(-1)
        prompt = join(2 * room + 1, (pairs, 2 * length), (keys[asked], 1))
        return Problem(*prompt, *answer(digits[asked] + self.symbols))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        return [dict(zip(prompt[:-1:2], prompt[1::2], strict=True))[prompt[-1]]]


@dataclasses.dataclass(frozen=True)
class FlipFlop(Task):
    """Instructions with a bit each: write it, read the one last written, ignore it.

    The first writes, the last reads, and between them a share `ignore` is ignored, the rest writes
    or reads with equal chance. Only the bit of the last read is supervised.
    """

    ignore: float

    @property
    def about(self) -> About:
        return About(
            "w 1 i 0 r 1 i 0 r <sep> 1",
            "the bit last written",
            "instructions",
            "Liu et al. 2023",
            ("ignore",),
            separator=False,
            smallest=2,
        )

    @property
    def words(self) -> tuple[str, ...]:
        return ("w", "r", "i", "0", "1")

    def most_prompt(self, length: int) -> int:
        return 2 * length - 1

    def num_prompts(self, length: int) -> float:
        likeliest = max(self.ignore / 2, (1 - self.ignore) / 2)  # a read has one bit alone
        return 2.0 * likeliest ** -float(min(length, 64) - 2)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key, 3)
        index = jnp.arange(room)
        is_ignored = raw(keys[0], room) < round(self.ignore * 2**31)
        does = jnp.where(is_ignored, IGNORE, symbols(keys[1], room, 2))
        does = jnp.where(index == 0, WRITE, jnp.where(index == length - 1, READ, does))
        drawn = symbols(keys[2], room, 2)
        written = drawn[jax.lax.cummax(jnp.where(does == WRITE, index, 0))]
        bits = jnp.where(does == READ, written, drawn)
        pairs = jnp.stack([does, bits + 3], axis=1).reshape(-1)[:-1]
        return Problem(
            first(pairs, 2 * length - 1), 2 * length - 1, *answer(written[length - 1] + 3)
        )

    def solve(self, prompt: Sequence[str]) -> list[str]:
        memory = ""
        for does, bit in zip(prompt[::2], prompt[1::2], strict=False):
            memory = bit if does == "w" else memory
            assert does != "r" or bit == memory, "a read that does not agree"
        return [memory]


RECALL = {
    "selective_copy": SelectiveCopy(16),
    "associative_recall": AssociativeRecall(26),
    "flip_flop": FlipFlop(0.8),
}
