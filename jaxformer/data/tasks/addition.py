"""Addition of two numbers, in the ways of writing it that decide whether it generalizes."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.data.tasks.base import (
    DIGITS,
    About,
    Ids,
    Problem,
    Task,
    backwards,
    first,
    join,
    names,
    raw,
)

PLUS, COMMA, EQUALS = 10, 11, 12
HINT = 11  # the first letter, of the variant that has them


class Variant(NamedTuple):
    """How numbers are written."""

    example: str
    meaning: str
    citation: str
    is_reversed: bool = False  # operands and sum, the lowest digit first
    is_padded: bool = False  # operands of n digits, zeros in front allowed, the sum of n + 1


VARIANTS = {
    "plain": Variant("4 7 + 5 <sep> 5 2", "the highest digit first", "Kazemnejad et al. 2023"),
    "reversed": Variant(
        "7 4 + 5 <sep> 2 5", "the lowest digit first", "Lee et al. 2023; McLeish et al. 2024", True
    ),
    "padded": Variant("4 7 + 0 5 <sep> 0 5 2", "with zeros", "Cho et al. 2024", is_padded=True),
    "padded_reversed": Variant(
        "7 4 + 5 0 <sep> 2 5 0",
        "with zeros, the lowest digit first",
        "Cho et al. 2024; McLeish et al. 2024",
        True,
        True,
    ),
    "hints": Variant(
        "f 7 g 4 + f 5 g 0 <sep> f 2 g 5 h 0",
        "the same, letters from a random one on before the digits",
        "Zhou et al. 2023; Zhou et al. 2024",
        True,
        True,
    ),
    "scratchpad": Variant(
        "4 7 + 5 <sep> 7 5 2 1 , 4 0 5 0 , = 5 2",
        "for each place, the lowest first, both digits, that of the sum, and the carry",
        "Nye et al. 2021",
    ),
}


@dataclasses.dataclass(frozen=True)
class Addition(Task):
    """`a + b <sep> a + b`: n digits in the longer operand (unpadded: the other has 1 … n)."""

    variant: str
    hints: int = 0  # how many letters there are

    @property
    def about(self) -> About:
        example, meaning, citation = VARIANTS[self.variant][:3]
        length_is, reads, largest = "digits of the longer operand", (), 0
        if self.variant == "hints":
            reads, largest = ("hints",), self.hints - 1
        return About(example, meaning, length_is, citation, reads, largest=largest)

    @property
    def words(self) -> tuple[str, ...]:
        more = (",", "=") if self.variant == "scratchpad" else names(self.hints)
        return (*DIGITS, "+", *more)

    def most_prompt(self, length: int) -> int:
        return (4 if self.variant == "hints" else 2) * length + 1

    def most_target(self, length: int) -> int:
        steps = 5 * length + 1 if self.variant == "scratchpad" else 0
        return (2 if self.variant == "hints" else 1) * (length + 1) + steps

    def num_prompts(self, length: int) -> float:
        n = min(length, 64)
        if VARIANTS[self.variant].is_padded:
            return 100.0**n * max(1, self.hints - n)
        return 100.0 if n == 1 else 2.0 * n * 9 * 10 ** (n - 1) * 10

    def sample(self, key: jax.Array, length: jax.Array, room: int) -> Problem:
        keys = jax.random.split(key)
        drawn, digits = raw(keys[0], 5), raw(keys[1], room, 2) % 10
        is_padded = VARIANTS[self.variant].is_padded
        short = length if is_padded else 1 + drawn[0] % length
        long = _number(digits[:, 0], drawn[1], length, is_padded)
        other = _number(digits[:, 1], drawn[2], short, is_padded)
        swap = drawn[3] % 2 == 1
        a, b = jnp.where(swap, other, long), jnp.where(swap, long, other)
        num_a, num_b = jnp.where(swap, short, length), jnp.where(swap, length, short)
        total, carries = _add(a, b)
        num_total = length + 1
        if not is_padded:
            num_total = length + (total[length] != 0)
        if self.variant == "hints":
            start = drawn[4] % (self.hints - length)
            a, b, total = (_hinted(number, start) for number in (a, b, total))
            num_a, num_b, num_total = 2 * num_a, 2 * num_b, 2 * num_total
        parts = [self._write(a, num_a), (PLUS, 1), self._write(b, num_b)]
        prompt = join(self.most_prompt(room), *parts)
        answer = (self._write(total, num_total),)
        if self.variant == "scratchpad":
            comma = jnp.full(room, COMMA)
            steps = jnp.stack([a, b, total[:room], carries, comma], axis=1).reshape(-1)
            answer = (steps, 5 * length), (EQUALS, 1), *answer
        return Problem(*prompt, *join(self.most_target(room), *answer))

    def solve(self, prompt: Sequence[str]) -> list[str]:
        variant, at = VARIANTS[self.variant], prompt.index("+")
        parts = list(prompt[:at]), list(prompt[at + 1 :])
        digits = [[word for word in part if word in DIGITS] for part in parts]
        numbers = [int("".join(d[::-1] if variant.is_reversed else d)) for d in digits]
        n = max(map(len, digits))
        total = f"{sum(numbers):0{n + 1}d}" if variant.is_padded else str(sum(numbers))
        if self.variant == "hints":
            letters = names(self.hints)
            start = letters.index(prompt[0])
            pairs = zip(letters[start:], reversed(total), strict=False)
            return [word for pair in pairs for word in pair]
        if self.variant == "scratchpad":
            steps, carry = [], 0
            a, b = (f"{number:0{n}d}"[::-1] for number in numbers)
            for x, y in zip(a, b, strict=True):
                carry, digit = divmod(int(x) + int(y) + carry, 10)
                steps += [x, y, str(digit), str(carry), ","]
            return [*steps, "=", *total]
        return list(reversed(total) if variant.is_reversed else total)

    def couple(self, problem: Problem) -> Ids | None:
        """Cho et al. 2024: signs have 1, digits of the same place one id, from the lowest 2 on."""
        if self.variant not in ("padded", "padded_reversed"):
            return None
        index, count = jnp.arange(len(problem.prompt)), (problem.prompt_length - 1) // 2
        place = index % (count + 1)  # both operands have n digits
        lowest = VARIANTS[self.variant].is_reversed
        ids = place + 2 if lowest else count + 1 - place
        prompt = jnp.where(problem.prompt == PLUS, 1, ids)
        index = jnp.arange(len(problem.target))
        target = index + 2 if lowest else problem.target_length + 1 - index
        return Ids(prompt, jnp.int32(1), target)

    def most_coupled(self, length: int) -> int:
        return length + 2

    def _write(self, number: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        lowest = VARIANTS[self.variant].is_reversed
        return (first if lowest else backwards)(number, count), count


def _number(digits: jax.Array, draw: jax.Array, count: jax.Array, zeros: bool) -> jax.Array:
    """Digits from the lowest on; the highest, from `draw`, is not 0 unless alone, or `zeros`."""
    is_highest = (jnp.arange(len(digits)) == count - 1) & (count > 1) & (not zeros)
    return first(jnp.where(is_highest, 1 + draw % 9, digits), count)


def _add(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Digits of the sum, int32[room + 1], and the carry out of each place, int32[room]."""

    def place(carry: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple]:
        total = pair[0] + pair[1] + carry
        return total // 10, (total % 10, total // 10)

    carry, (digits, carries) = jax.lax.scan(place, jnp.int32(0), (a, b))
    return jnp.append(digits, carry), carries


def _hinted(digits: jax.Array, start: jax.Array) -> jax.Array:
    letters = HINT + start + jnp.arange(len(digits))
    return jnp.stack([letters, digits], axis=1).reshape(-1)


ADDITION = {
    "addition": Addition("plain"),
    "addition_reversed": Addition("reversed"),
    "addition_padded": Addition("padded"),
    "addition_padded_reversed": Addition("padded_reversed"),
    "addition_hints": Addition("hints", 26),
    "addition_scratchpad": Addition("scratchpad"),
}
