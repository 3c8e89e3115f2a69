"""The fields of position sources: which id a token has."""

import dataclasses
from typing import Literal

from jaxformer.config.section import Section, at_least, refuse, unread

WHERE = "model.position.source"
DRAWN = ("offset", "randomized", "random_float")  # from a range of ids
MOST_IDS = 2**20  # of random_float
RANGED = (*DRAWN, "coupled")


@dataclasses.dataclass(frozen=True)
class AbacusConfig(Section):
    max_offset: int
    digits: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RandomFloatConfig(Section):
    steps: int


@dataclasses.dataclass(frozen=True)
class PositionSourceConfig(Section):
    kind: Literal["contiguous", "offset", "randomized", "random_float", "abacus", "coupled"]
    range: int
    random_float: RandomFloatConfig
    abacus: AbacusConfig

    @property
    def unit(self) -> int:
        """How many ids there are to a position: an encoding divides by it."""
        return self.random_float.steps if self.kind == "random_float" else 1

    def num_ids(self, length: int, max_length: int) -> int:
        """How many ids documents of up to `length` tokens may have in training, from 0 on."""
        if self.kind == "abacus":
            return length + self.abacus.max_offset + 1
        return self.unit * (self.range or max_length) if self.kind in RANGED else length

    def with_digits(self, digits: tuple[int, ...]) -> "PositionSourceConfig":
        """The same with `abacus.digits` filled in where it is used and empty."""
        if self.kind != "abacus" or self.abacus.digits:
            return self
        return dataclasses.replace(self, abacus=dataclasses.replace(self.abacus, digits=digits))

    def check(self) -> None:
        at_least(WHERE, self, 0, "range")
        unread(f"{WHERE}.range", self.range, self.kind in RANGED, f"kind = {', '.join(RANGED)}")
        at_least(f"{WHERE}.abacus", self.abacus, 0, "max_offset")
        if any(digit < 0 for digit in self.abacus.digits):
            mend = "give token ids, or () for those of the tokenizer"
            refuse(f"{WHERE}.abacus.digits", f"is {self.abacus.digits}", mend)

    def check_steps(self, max_length: int) -> None:
        """Raises UserError where steps of random reals are not exact, or more than angles count."""
        if self.kind != "random_float":
            return
        where, steps = f"{WHERE}.random_float.steps", self.random_float.steps
        at_least(f"{WHERE}.random_float", self.random_float, 1, "steps")
        if steps & (steps - 1):
            refuse(where, f"is {steps}", "give a power of two, by which numbers divide exactly")
        if (ids := self.num_ids(0, max_length)) > MOST_IDS:
            what = f"is {steps}, which makes {ids} ids of {ids // steps} positions"
            refuse(where, what, f"lower it: angles are right up to {MOST_IDS}")

    def check_length(self, where: str, length: int, max_length: int) -> None:
        """Raises UserError where rows of data are longer than the range that ids come from."""
        ids = self.num_ids(length, max_length)
        if self.kind in DRAWN and ids < length:
            mend = f"raise it to {length} or more"
            refuse(f"{WHERE}.range", f"is {ids}, below {where} = {length}", mend)

    def check_table(self, where: str, length: int, max_length: int) -> None:
        """Raises UserError where a table of max_length rows ends before the ids do."""
        ids, table = self.num_ids(length, max_length), f"model.max_length = {max_length}"
        if ids <= max_length:
            return
        if self.kind in RANGED:
            mend = "the rows of the learned table: raise it, or lower the range"
            refuse(f"{WHERE}.range", f"is {ids}, more than {table}", mend)
        refuse(
            where,
            f"{length} gives ids up to {ids - 1} with {WHERE}.abacus.max_offset = "
            f"{self.abacus.max_offset}, more than {table} allows",
            f"raise the latter to {ids}, or lower the offset",
        )
