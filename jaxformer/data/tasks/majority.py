"""The most frequent of bits or symbols; there are no ties."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import (
    About,
    Problem,
    Task,
    answer,
    first,
    names,
    numbers,
    places,
    raw,
    symbols,
)

MOST_DRAWS = 4096  # two of 26 symbols are equal with probability 1 / 26


@dataclasses.dataclass(frozen=True)
class BinaryMajority(Task):
    """The number of zeros is uniform on 0 … n without n / 2, their places are uniform."""

    @property
    def about(self) -> About:
        return About("0 1 1 <sep> 1", "the more frequent bit", "bits", "Huang et al. 2025")

    @property
    def words(self) -> tuple[str, ...]:
        return numbers(2)

    def num_prompts(self, length: int) -> float:
        return length + length % 2  # n equal bits are one number of zeros among so many

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key)
        is_even = 1 - length % 2
        zeros = raw(keys[0]) % (length + 1 - is_even)
        zeros += is_even * (zeros >= length // 2)
        is_zero = places(keys[1], zeros, length, room)
        bits = first(1 - is_zero.astype(jnp.int32), length)
        return Problem(bits, length, *answer(2 * zeros < length))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        return [Counter(prompt).most_common(1)[0][0]]


@dataclasses.dataclass(frozen=True)
class Majority(Task):
    """Independent uniform symbols, drawn again while two of them are the most frequent."""

    symbols: int
    citation: str

    @property
    def about(self) -> About:
        meaning = "the most frequent symbol"
        return About("c a c <sep> c", meaning, "symbols", self.citation, ("symbols",))

    @property
    def words(self) -> tuple[str, ...]:
        return names(self.symbols)

    def num_prompts(self, length: int) -> float:
        if length <= 2:
            return self.symbols  # equal ones
        return self.symbols ** (min(length, 64) - 1)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        def draw(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple:
            attempt = carry[0]
            x = symbols(jax.random.fold_in(key, attempt), room, self.symbols)
            here = (jnp.arange(room) < length).astype(jnp.int32)
            counts = jnp.zeros(self.symbols, jnp.int32).at[x].add(here)
            return attempt + 1, x, counts

        def is_tie(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            attempt, _, counts = carry
            return ((counts == counts.max()).sum() != 1) & (attempt < MOST_DRAWS)

        blank = jnp.zeros(room, jnp.int32), jnp.zeros(self.symbols, jnp.int32)
        _, x, counts = jax.lax.while_loop(is_tie, draw, (jnp.int32(0), *blank))
        return Problem(first(x, length), length, *answer(counts.argmax()))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        counts = Counter(prompt).most_common()
        assert len(counts) == 1 or counts[0][1] > counts[1][1]
        return [counts[0][0]]


MAJORITY = {
    "binary_majority": BinaryMajority(),
    "majority": Majority(26, "Huang et al. 2025"),
    "mode": Majority(5, "Zhou et al. 2023"),
}
