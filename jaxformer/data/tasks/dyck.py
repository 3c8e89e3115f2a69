"""Dyck-k: close the brackets that are open, of k kinds."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import About, Problem, Task, backwards, symbols

PAIRS = ("()", "[]", "{}", "<>")


@dataclasses.dataclass(frozen=True)
class Dyck(Task):
    """A prefix of a Dyck word and the shortest end of it.

    The prefix is a walk: with nothing open a bracket opens, otherwise one opens or closes with
    equal chance; the kind of an opening one is uniform. The target is empty where all are closed.
    """

    brackets: int

    @property
    def about(self) -> About:
        example, meaning = "( [ ] [ <sep> ] )", "the brackets that close it"
        citation = "Hewitt et al. 2020; Yao et al. 2021"
        return About(example, meaning, "brackets of the prefix", citation, ("brackets",))

    @property
    def words(self) -> tuple[str, ...]:
        """Opening bracket i is word 2i, the one that closes it word 2i + 1."""
        named = [(f"({i}", f"{i})") for i in range(len(PAIRS), self.brackets)]
        pairs = [*map(tuple, PAIRS[: self.brackets]), *named]
        return sum(pairs, ())

    def most_target(self, length: int) -> int:
        return length

    def num_prompts(self, length: int) -> float:
        return (2 * self.brackets) ** (min(length, 128) // 2)  # opened and closed in turn

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key)
        opens, kinds = symbols(keys[0], room, 2) == 1, symbols(keys[1], room, self.brackets)

        def step(carry: tuple[jax.Array, jax.Array], draw: tuple) -> tuple:
            depth, stack = carry
            index, is_open, kind = draw
            here, is_open = index < length, is_open | (depth == 0)
            word = jnp.where(is_open, 2 * kind, 2 * stack[depth - 1] + 1)
            stack = stack.at[jnp.where(here & is_open, depth, room)].set(kind, mode="drop")
            depth = depth + jnp.where(here, jnp.where(is_open, 1, -1), 0)
            return (depth, stack), jnp.where(here, word, 0)

        start = jnp.int32(0), jnp.zeros(room, jnp.int32)
        (depth, stack), prompt = jax.lax.scan(step, start, (jnp.arange(room), opens, kinds))
        return Problem(prompt, length, backwards(2 * stack + 1, depth), depth)

    def solve(self, prompt: Sequence[str]) -> list[str]:
        words, open_ = self.words, []
        closing = dict(zip(words[::2], words[1::2], strict=True))
        for word in prompt:
            if word in closing:
                open_.append(closing[word])
            else:
                assert open_.pop() == word, f"{word} closes nothing"
        return open_[::-1]


DYCK = {"dyck": Dyck(2)}
