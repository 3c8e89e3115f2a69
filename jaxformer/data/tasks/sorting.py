"""Sort numbers, and count from one to another."""

import dataclasses
from collections.abc import Sequence
from math import perm

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import About, Problem, Task, distinct, first, numbers, raw, symbols


@dataclasses.dataclass(frozen=True)
class Sort(Task):
    """Numbers in ascending order: distinct ones, or few that repeat (buckets)."""

    distinct: bool
    symbols: int

    @property
    def about(self) -> About:
        if self.distinct:
            citation = "Zhou et al. 2023; Huang et al. 2025"
            example, largest = "40 7 12 <sep> 7 12 40", self.symbols
            return About(
                example, "distinct numbers", "numbers", citation, ("symbols",), largest=largest
            )
        example = "1 0 4 1 <sep> 0 1 1 4"
        return About(example, "few numbers", "numbers", "Delétang et al. 2022", ("symbols",))

    @property
    def words(self) -> tuple[str, ...]:
        return numbers(self.symbols)

    def most_target(self, length: int) -> int:
        return length

    def num_prompts(self, length: int) -> float:
        if self.distinct:
            return perm(self.symbols, length)
        return self.symbols ** min(length, 64)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        x = (distinct if self.distinct else symbols)(key, room, self.symbols)
        beyond = jnp.where(jnp.arange(room) < length, x, self.symbols)
        return Problem(first(x, length), length, first(jnp.sort(beyond), length), length)

    def solve(self, prompt: Sequence[str]) -> list[str]:
        return sorted(prompt, key=int)


@dataclasses.dataclass(frozen=True)
class Count(Task):
    """All numbers from the first to the last one, both among 0 … symbols - 1."""

    symbols: int

    @property
    def about(self) -> About:
        example, meaning, length_is = "7 10 <sep> 7 8 9 10", "from … to …", "numbers to write"
        citation = "Zhou et al. 2023"
        return About(example, meaning, length_is, citation, ("symbols",), largest=self.symbols)

    @property
    def words(self) -> tuple[str, ...]:
        return numbers(self.symbols)

    def most_prompt(self, length: int) -> int:
        return 2

    def most_target(self, length: int) -> int:
        return length

    def num_prompts(self, length: int) -> float:
        return self.symbols - length + 1

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        start = raw(key) % (self.symbols - length + 1)
        prompt = jnp.stack([start, start + length - 1]).astype(jnp.int32)
        return Problem(prompt, jnp.int32(2), first(start + jnp.arange(room), length), length)

    def solve(self, prompt: Sequence[str]) -> list[str]:
        start, stop = map(int, prompt)
        return [str(number) for number in range(start, stop + 1)]


SORTING = {
    "sort": Sort(True, 100),
    "bucket_sort": Sort(False, 5),
    "count": Count(100),
}
