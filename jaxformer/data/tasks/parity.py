"""Sums modulo a number: of digits, of bits, and of bits step by step."""

import dataclasses
from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import About, Problem, Task, answer, first, numbers, symbols


@dataclasses.dataclass(frozen=True)
class SumMod(Task):
    """Digits are independent and uniform on 0 … modulus - 1; so are the answers, then."""

    modulus: int

    @property
    def about(self) -> About:
        meaning = "the sum modulo 10"
        return About("3 9 4 <sep> 6", meaning, "digits", "Kazemnejad et al. 2023", ("modulus",))

    @property
    def words(self) -> tuple[str, ...]:
        return numbers(self.modulus)

    def num_prompts(self, length: int) -> float:
        return self.modulus ** min(length, 64)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        digits = first(symbols(key, room, self.modulus), length)
        return Problem(digits, length, *answer(digits.sum() % self.modulus))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        return [str(sum(map(int, prompt)) % self.modulus)]


@dataclasses.dataclass(frozen=True)
class Parity(Task):
    """1 if the number of ones is odd; bits are independent and uniform.

    With `steps` the target is the parity of each prefix, the last of which is the answer.
    """

    steps: bool

    @property
    def about(self) -> About:
        if self.steps:
            return About("0 1 1 <sep> 0 1 0", "parity of each prefix", "bits", "Anil et al. 2022")
        citation = "Delétang et al. 2022; Kazemnejad et al. 2023"
        return About("0 1 1 <sep> 0", "1 if the ones are odd", "bits", citation)

    @property
    def words(self) -> tuple[str, ...]:
        return numbers(2)

    def most_target(self, length: int) -> int:
        return length if self.steps else 1

    def num_prompts(self, length: int) -> float:
        return 2 ** min(length, 64)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        bits = first(symbols(key, room, 2), length)
        if self.steps:
            return Problem(bits, length, first(jnp.cumsum(bits) % 2, length), length)
        return Problem(bits, length, *answer(bits.sum() % 2))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        states = accumulate((word == "1" for word in prompt), lambda odd, one: odd != one)
        found = [str(int(odd)) for odd in states]
        return found if self.steps else found[-1:]


PARITY = {
    "sum_mod": SumMod(10),
    "parity": Parity(False),
    "parity_scratchpad": Parity(True),
}
