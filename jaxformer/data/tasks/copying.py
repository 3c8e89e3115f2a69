"""Copy and reverse strings of symbols."""

import dataclasses
from collections.abc import Sequence
from math import perm

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import (
    About,
    Problem,
    Task,
    backwards,
    distinct,
    first,
    join,
    names,
    symbols,
)

NEXT = "<next>"
KAZEMNEJAD = "Kazemnejad et al. 2023"
VARIANTS = {  # an example, what is drawn, and whose task it is
    "unique": ("c a b <sep> c a b", "distinct symbols", "Zhou et al. 2023; Huang et al. 2025"),
    "repeated": ("a b b <sep> a b b", "symbols", f"{KAZEMNEJAD}; Huang et al. 2025"),
    "same": ("c c c <sep> c c c", "one symbol", KAZEMNEJAD),
    "double": (f"c a <sep> c a {NEXT} c a", "symbols, twice", KAZEMNEJAD),
    "reverse": ("c a b <sep> b a c", "symbols, the last first", KAZEMNEJAD),
    "reverse_double": (f"c a <sep> a c {NEXT} a c", "the same, twice", KAZEMNEJAD),
    "reverse_copy": (f"c a <sep> a c {NEXT} c a", "reversed, then as they were", KAZEMNEJAD),
}


@dataclasses.dataclass(frozen=True)
class Copying(Task):
    """`x <sep> x` and its variants, x a string of symbols that are its words."""

    variant: str
    symbols: int

    @property
    def words(self) -> tuple[str, ...]:
        return names(self.symbols) + (NEXT,) * self._twice

    @property
    def about(self) -> About:
        example, meaning, citation = VARIANTS[self.variant]
        largest = self.symbols if self.variant == "unique" else 0
        return About(example, meaning, "symbols", citation, ("symbols",), largest=largest)

    @property
    def _twice(self) -> bool:
        return NEXT in VARIANTS[self.variant][0]

    def most_target(self, length: int) -> int:
        return 2 * length + 1 if self._twice else length

    def num_prompts(self, length: int) -> float:
        if self.variant == "unique":
            return perm(self.symbols, length)
        return self.symbols if self.variant == "same" else self.symbols ** min(length, 64)

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        if self.variant == "unique":
            x = distinct(key, room, self.symbols)
        elif self.variant == "same":
            x = jnp.full(room, symbols(key, 1, self.symbols)[0])
        else:
            x = symbols(key, room, self.symbols)
        onward, back = (first(x, length), length), (backwards(x, length), length)
        between = self.symbols, 1
        parts = {
            "double": (onward, between, onward),
            "reverse": (back,),
            "reverse_double": (back, between, back),
            "reverse_copy": (back, between, onward),
        }.get(self.variant, (onward,))
        return Problem(*onward, *join(self.most_target(room), *parts))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        x, reverse = list(prompt), list(reversed(prompt))
        return {
            "double": [*x, NEXT, *x],
            "reverse": reverse,
            "reverse_double": [*reverse, NEXT, *reverse],
            "reverse_copy": [*reverse, NEXT, *x],
        }.get(self.variant, x)


COPYING = {
    "copy_unique": Copying("unique", 48),
    "copy_repeated": Copying("repeated", 2),
    "copy_same": Copying("same", 100),
    "copy_double": Copying("double", 10),
    "reverse": Copying("reverse", 10),
    "reverse_double": Copying("reverse_double", 10),
    "reverse_copy": Copying("reverse_copy", 10),
}
