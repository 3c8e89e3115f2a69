"""Tasks of Delétang et al. 2022, one for each kind of automaton; bucket sort is in sorting.py."""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import (
    About,
    Problem,
    Task,
    answer,
    first,
    join,
    numbers,
    raw,
    symbols,
)

DELETANG = "Delétang et al. 2022; Ruoss et al. 2023"
MOVES = ("left", "stay", "right")
SIGNS = ("+", "-", "*")
HOLE = "_"


@dataclasses.dataclass(frozen=True)
class EvenPairs(Task):
    """0 if 01 and 10 occur an even number of times in all, which is: the ends are equal."""

    @property
    def about(self) -> About:
        meaning = "1 if 01 and 10 together are odd in number"
        return About("0 0 1 1 1 0 <sep> 0", meaning, "bits", DELETANG)

    @property
    def words(self) -> tuple[str, ...]:
        return numbers(2)

    def num_prompts(self, length: int) -> float:
        return 2 ** min(length, 64)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        bits = first(symbols(key, room, 2), length)
        return Problem(bits, length, *answer(bits[0] ^ bits[length - 1]))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        pairs = itertools.pairwise(prompt)
        return [str(sum(a != b for a, b in pairs) % 2)]


@dataclasses.dataclass(frozen=True)
class CycleNavigation(Task):
    """Where moves on a cycle of `modulus` places end that start at 0."""

    modulus: int

    @property
    def about(self) -> About:
        example, meaning = "right stay left left <sep> 4", "the place on a cycle of 5"
        return About(example, meaning, "moves", DELETANG, ("modulus",))

    @property
    def words(self) -> tuple[str, ...]:
        return (*MOVES, *numbers(self.modulus))

    def num_prompts(self, length: int) -> float:
        return 3.0 ** min(length, 64)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        moves = symbols(key, room, len(MOVES))
        place = first(moves - 1, length).sum() % self.modulus
        return Problem(first(moves, length), length, *answer(len(MOVES) + place))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        return [str((prompt.count("right") - prompt.count("left")) % self.modulus)]


@dataclasses.dataclass(frozen=True)
class ModularArithmetic(Task):
    """Numbers joined by + - and *, which binds first."""

    modulus: int

    @property
    def about(self) -> About:
        return About("2 + 4 * 3 <sep> 4", "modulo 5", "numbers", DELETANG, ("modulus",))

    @property
    def words(self) -> tuple[str, ...]:
        return (*numbers(self.modulus), *SIGNS)

    def most_prompt(self, length: int) -> int:
        return 2 * length - 1

    def num_prompts(self, length: int) -> float:
        n = min(length, 64)
        return self.modulus**n * 3 ** (n - 1)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key)
        x, signs = symbols(keys[0], room, self.modulus), symbols(keys[1], room, len(SIGNS))

        def read(carry: tuple[jax.Array, jax.Array], item: tuple) -> tuple:
            """The sum before the last term, and that term, with the sign before item i."""
            index, sign, number = item
            total, term = carry
            product, signed = term * number % self.modulus, jnp.where(sign == 0, number, -number)
            after = total, product
            ended = total + term, signed
            new = jax.tree.map(lambda a, b: jnp.where(sign == 2, a, b), after, ended)
            return jax.tree.map(lambda a, b: jnp.where(index < length, a, b), new, carry), None

        items = jnp.arange(1, room), signs[: room - 1], x[1:]
        (total, term), _ = jax.lax.scan(read, (jnp.int32(0), x[0]), items)
        written = jnp.stack([x, signs + self.modulus], axis=1).reshape(-1)[:-1]
        result = (total + term) % self.modulus
        return Problem(first(written, 2 * length - 1), 2 * length - 1, *answer(result))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        total = 0
        for part in " ".join(prompt).replace("- ", "+ -").split("+ "):
            product = 1
            for number in part.split(" * "):
                product *= int(number)
            total += product
        return [str(total % self.modulus)]


@dataclasses.dataclass(frozen=True)
class MissingDuplicate(Task):
    """A string of bits twice, with one place blanked: what stood there."""

    @property
    def about(self) -> About:
        example, meaning = "0 1 1 0 0 _ 1 0 <sep> 1", "what is missing of a string twice"
        return About(example, meaning, "bits of the string", DELETANG)

    @property
    def words(self) -> tuple[str, ...]:
        return (*numbers(2), HOLE)

    def most_prompt(self, length: int) -> int:
        return 2 * length

    def num_prompts(self, length: int) -> float:
        return 2.0 ** min(length, 64) * 2 * length

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key)
        bits = first(symbols(keys[0], room, 2), length)
        twice, count = join(2 * room, (bits, length), (bits, length))
        gap = raw(keys[1]) % count
        return Problem(twice.at[gap].set(2), count, *answer(twice[gap]))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        gap, half = list(prompt).index(HOLE), len(prompt) // 2
        return [prompt[gap - half if gap >= half else gap + half]]


CHOMSKY = {
    "even_pairs": EvenPairs(),
    "cycle_navigation": CycleNavigation(5),
    "modular_arithmetic": ModularArithmetic(5),
    "missing_duplicate": MissingDuplicate(),
}
