"""Minimal pairs: is the good sentence more probable than the bad one? Warstadt et al. 2020 (BLiMP).

A sentence is scored whole, as the sum of the log-probabilities of its tokens, its end token left
out; a pair whose sentences are equally probable counts as wrong and is told.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxformer.data.columns import json_objects, string_of
from jaxformer.errors import UserError
from jaxformer.evaluation.report import percent
from jaxformer.evaluation.statistics import ratio, wilson
from jaxformer.evaluation.texts import Reader
from jaxformer.generation import score

GOOD, BAD = "sentence_good", "sentence_bad"
ALL = "all"


@dataclasses.dataclass(frozen=True)
class PairFile:
    """A file's sentences as ids: the good and the bad one of each pair."""

    name: str
    good: list[np.ndarray]
    bad: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Log-probabilities float64[n] of the sentences of a file, in nats."""

    name: str
    good: np.ndarray
    bad: np.ndarray

    @property
    def right(self) -> int:
        return int((self.good > self.bad).sum())

    @property
    def ties(self) -> int:
        return int((self.good == self.bad).sum())


def read_pairs(path: Path, reader: Reader) -> list[PairFile]:
    """The pairs of a jsonl file, or of those of a folder by name; UserError names file and line."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise UserError(str(path), "has no file *.jsonl", "name a file or folder of pairs")
    found = []
    for file in files:
        good, bad = [], []
        for where, value in json_objects(file):
            for field, ids in ((GOOD, good), (BAD, bad)):
                ids.append(reader.sentence(where, string_of(where, value, field)))
        if not good:
            raise UserError(str(file), "is empty", f"give lines with {GOOD} and {BAD}")
        found.append(PairFile(file.stem, good, bad))
    return found


def score_pairs(
    model: nnx.Module, files: Sequence[PairFile], *, batch_size: int, prefix: bool = False
) -> Iterator[PairScores]:
    """Scores file by file."""
    for file in files:
        sentences = [*file.good, *file.bad]
        logprobs = score(
            model,
            [ids[:1] for ids in sentences],
            [ids[1:] for ids in sentences],
            batch_size=batch_size,
            prefix=prefix,
        ).logprobs
        yield PairScores(file.name, *np.split(logprobs, 2))


def pair_records(found: Sequence[PairScores]) -> list[dict[str, Any]]:
    """Long rows: the accuracy of each file and of all pairs, with Wilson's 95 % interval."""
    rows = [(one.name, one.right, one.ties, len(one.good)) for one in found]
    if len(rows) > 1:
        _, right, ties, totals = zip(*rows, strict=True)
        rows.append((ALL, sum(right), sum(ties), sum(totals)))
    return [
        {
            "file": name,
            "metric": "accuracy",
            "value": ratio(right, total),
            **wilson(right, total)._asdict(),
            "weight": total,
            "ties": ties,
        }
        for name, right, ties, total in rows
    ]


def pair_table(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For people."""
    return [
        {
            "file": row["file"],
            "accuracy %": percent(row["value"]),
            "95 % interval": f"{percent(row['low'])} – {percent(row['high'])}",
            "ties": row["ties"],
            "pairs": f"{row['weight']:,}",
        }
        for row in records
    ]
