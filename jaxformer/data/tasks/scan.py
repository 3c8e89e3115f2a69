"""SCAN (Lake and Baroni 2018): commands in words to actions, read from the files of its splits.

A folder holds `tasks_train_SPLIT.txt` and `tasks_test_SPLIT.txt`, lines of `IN: command OUT:
actions`. The length is the number of actions. Split `length:N` cuts the examples of split length
anew: up to N actions for training, more for tests (Newman et al. 2020; Kazemnejad et al. 2023 have
25). A tenth of the training part, by a hash of the command, is kept for validation, and stands in
for tests of lengths that the test part has none of.
"""

import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.tasks.base import About, Problem, Task
from jaxformer.data.tasks.sampler import Batch, Sampler, make_row, shuffled, stream
from jaxformer.errors import UserError

ACTIONS = ("I_JUMP", "I_LOOK", "I_RUN", "I_TURN_LEFT", "I_TURN_RIGHT", "I_WALK")
COMMANDS = (
    *("after", "and", "around", "jump", "left", "look", "opposite", "right", "run", "thrice"),
    *("turn", "twice", "walk"),
)
WORDS = (*COMMANDS, *ACTIONS)
LONGEST = 9, 48  # words of a command, actions
HELD_OUT = 10  # one in so many commands
Example = tuple[tuple[str, ...], tuple[str, ...]]


class Part(NamedTuple):
    """Examples as arrays; those of a length are rows first[length] … first[length + 1] - 1."""

    prompt: np.ndarray  # int8[examples, 9]
    prompt_length: np.ndarray
    target: np.ndarray  # int8[examples, 48]
    target_length: np.ndarray  # ascending
    first: np.ndarray  # int32[50]


class Parts(NamedTuple):
    train: Part
    validation: Part
    tests: Part


@dataclasses.dataclass(frozen=True)
class Scan(Task):
    """The task and where its files are; `content` is a hash of these."""

    path: str = dataclasses.field(default="", repr=False)
    split: str = ""
    content: str = ""

    @property
    def about(self) -> About:
        example = "jump left twice <sep> I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP"
        meaning, citation = "what the command says", "Lake and Baroni 2018"
        return About(example, meaning, "actions", citation, ("split",), largest=LONGEST[1])

    @property
    def words(self) -> tuple[str, ...]:
        return WORDS

    def most_prompt(self, length: int) -> int:
        return LONGEST[0]

    def most_target(self, length: int) -> int:
        return min(length, LONGEST[1])

    def solve(self, prompt: Sequence[str]) -> list[str]:
        """Lake and Baroni 2018, figure 6: the interpretation function."""
        command = " ".join(prompt)
        for word, is_swapped in (("and", False), ("after", True)):
            if f" {word} " in command:
                parts = [self.solve(part.split()) for part in command.split(f" {word} ")]
                return [action for part in parts[:: -1 if is_swapped else 1] for action in part]
        words = list(prompt)
        if words[-1] in ("twice", "thrice"):
            return self.solve(words[:-1]) * {"twice": 2, "thrice": 3}[words[-1]]
        act = [] if words[0] == "turn" else [f"I_{words[0].upper()}"]
        if len(words) == 1:
            return act
        turn = [f"I_TURN_{words[-1].upper()}"]
        how = words[1] if len(words) == 3 else ""
        return {"": turn + act, "opposite": turn * 2 + act, "around": (turn + act) * 4}[how]


@dataclasses.dataclass(frozen=True)
class ScanSampler(Sampler):
    """Rows of the files: training rows in a new order every epoch, tests each once."""

    @property
    def _parts(self) -> Parts:
        assert isinstance(self.task, Scan)
        return read_parts(self.task.path, self.task.split)

    def is_exhaustive(self, length: int) -> bool:
        del length
        return False

    def train_row(self, data_seed: jax.Array, number: jax.Array) -> Batch:
        count = self.num_examples
        epoch = jax.random.fold_in(stream(data_seed, 0), number // count)
        index = shuffled(number % count, count, epoch)
        return self._row_of(self._parts.train, index, self.width)

    def validation_row(self, data_seed: jax.Array, number: jax.Array) -> Batch:
        part = self._parts.validation
        count = len(part.target)
        index = shuffled(number % count, count, stream(jnp.uint32(0), 1))
        return _only(self._row_of(part, index, self.width), number < count)

    def test_row(
        self, seed: jax.Array, length: jax.Array, number: jax.Array, room: int, width: int
    ) -> Batch:
        """Row `number` of the length in the order of the file; beyond the last one weight 0."""
        part = self._parts.tests
        first = jnp.asarray(part.first)
        index = first[length] + number.astype(jnp.int32)
        row = self._row_of(part, jnp.minimum(index, len(part.target) - 1), width)
        return _only(row, index < first[length + 1])

    def _row_of(self, part: Part, index: jax.Array, width: int) -> Batch:
        arrays = (jnp.asarray(array)[index].astype(jnp.int32) for array in part[:4])
        return make_row(self.task, Problem(*arrays), width, self.add_bos, False)


def scan_sampler(folder: str, split: str, width: int, add_bos: bool) -> ScanSampler:
    """Reads the files; UserError where they are missing or are no SCAN."""
    parts = read_parts(folder, split)
    digest = hashlib.sha256()
    for array in (*parts.train, *parts.validation, *parts.tests):
        digest.update(array.tobytes())
    task = Scan(folder, split, digest.hexdigest()[:16])
    longest = int(parts.train.target_length[-1])
    return ScanSampler(task, 1, longest, len(parts.train.target), width, add_bos, False)


@functools.lru_cache(maxsize=8)
def read_parts(folder: str, split: str) -> Parts:
    """Training, validation and test examples of a split."""
    name, colon, cut = split.partition(":")
    if not name or (colon and (name != "length" or not cut.isdecimal())):
        mend = "name one that the folder has files of, such as length, or length:25"
        raise UserError("data.task.split", f"is {split!r}", mend)
    train, tests = (_read(Path(folder) / f"tasks_{part}_{name}.txt") for part in ("train", "test"))
    if colon:
        both = train + tests
        train = [example for example in both if len(example[1]) <= int(cut)]
        tests = [example for example in both if len(example[1]) > int(cut)]
    counts = Counter(command for command, _ in train)
    held_out = {c for c, n in counts.items() if n == 1 and _hash(c) % HELD_OUT == 0}
    validation = [example for example in train if example[0] in held_out]
    train = [example for example in train if example[0] not in held_out]
    parts = {"training": train, "validation": validation, "test": tests}
    if empty := [part for part, examples in parts.items() if not examples]:
        what = f"{split} leaves no {empty[0]} example of {len(counts)} commands"
        raise UserError("data.task.split", what, "cut elsewhere, or use the whole files")
    tested = {len(actions) for _, actions in tests}
    tests += [example for example in validation if len(example[1]) not in tested]
    return Parts(_part(train), _part(validation), _part(tests))


def _read(path: Path) -> list[Example]:
    if not path.is_file():
        mend = "data.path names the folder of its files"
        raise UserError("data.task.split", f"has no file {path}", mend)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}", f"cannot be read ({error})", "restore it") from error
    found = []
    for number, line in enumerate(lines, 1):
        command, out, actions = line.partition(" OUT: ")
        example = tuple(command.removeprefix("IN: ").split()), tuple(actions.split())
        fits = all(0 < len(text) <= most for text, most in zip(example, LONGEST, strict=True))
        if not out or not fits or not set(sum(example, ())) <= set(WORDS):
            mend = "lines are IN: command OUT: actions"
            raise UserError(f"{path}, line {number}", f"is no example of SCAN: {line[:60]}", mend)
        found.append(example)
    return found


def _part(examples: list[Example]) -> Part:
    """In ascending order of length, otherwise as they come."""
    examples = sorted(examples, key=lambda example: len(example[1]))
    sides = [_side([example[side] for example in examples], LONGEST[side]) for side in (0, 1)]
    lengths = np.arange(LONGEST[1] + 2)
    first = np.searchsorted(sides[1][1], lengths).astype(np.int32)
    return Part(*sides[0], *sides[1], first)


def _side(texts: list[tuple[str, ...]], longest: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.zeros((len(texts), longest), np.int8)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = [WORDS.index(word) for word in text]
    return ids, np.array([len(text) for text in texts], np.int8)


def _hash(command: tuple[str, ...]) -> int:
    return int.from_bytes(hashlib.sha256(" ".join(command).encode()).digest()[:4])


def _only(row: Batch, is_counted: jax.Array) -> Batch:
    return row | {"weights": row["weights"] * is_counted}


SCAN = {"scan": Scan()}
