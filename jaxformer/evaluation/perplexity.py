"""Perplexity of a text in windows: each token is scored exactly once.

A window of N inputs predicts N tokens. The next one starts `stride` tokens later and scores the
tokens that no earlier one has: with stride = N windows do not overlap, and the first token of each
has one token before it; with a smaller stride every token but the first N has at least N - stride
+ 1 before it, at the price of N / stride times the work.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.data.columns import read_text
from jaxformer.errors import UserError
from jaxformer.evaluation.statistics import ratio
from jaxformer.evaluation.texts import Reader
from jaxformer.generation.scoring import score_batches
from jaxformer.nn.positions.sources import document_limit


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as ids, the start before them, and what its scored tokens stand for."""

    ids: np.ndarray
    num_words: int  # separated by white space
    num_bytes: int  # of UTF-8


@dataclasses.dataclass(frozen=True)
class Cut:
    """Inputs of a window, and how much later the next one starts."""

    window: int
    stride: int


@dataclasses.dataclass(frozen=True)
class TextScore:
    """What the windows so far have given: sums over their tokens."""

    nats: float
    num_tokens: int
    num_right: int  # that are the most probable one


def open_text(path: Path, reader: Reader) -> Text:
    """Reads a file as one text; UserError where it is empty, or holds what the model cannot."""
    text = read_text(path)
    ids = reader.stream(str(path), text)
    size = len(text.encode())
    if reader.start < 0:  # the first token is not scored
        size -= len(reader.tokenizer.decode(ids[:1]).encode())
    return Text(ids, len(text.split()), size)


def make_cut(cfg: ModelConfig, window: int | None, stride: int | None, trained: int) -> Cut:
    """The protocol asked for: windows of the trained length, which do not overlap, unless told.

    Raises UserError for one that the model cannot read, or that leaves tokens out.
    """
    most, field = document_limit(cfg)
    window = window or min(trained, most or trained)
    if most and window > most:
        raise UserError("--window", f"is {window}", f"{field} allows {most}: give a smaller one")
    if stride and stride > window:
        what = f"is {stride}, above the window of {window}"
        raise UserError("--stride", what, "tokens between two windows would not be scored")
    return Cut(window, stride or window)


def windows(num_ids: int, cut: Cut) -> list[tuple[int, int, int]]:
    """(start, first scored, end) of each window of a text of so many ids, its start included."""
    found, scored = [], 1
    for start in range(0, num_ids, cut.stride):
        end = min(start + cut.window + 1, num_ids)
        if scored >= end:
            break
        found.append((start, scored, end))
        scored = end
    return found


def score_text(
    model: nnx.Module, text: Text, cut: Cut, *, batch_size: int, prefix: bool = False
) -> Iterator[TextScore]:
    """Sums over all windows that are done, after each batch: the last one has them all."""
    places = windows(len(text.ids), cut)
    prompts = [text.ids[start:first] for start, first, _ in places]
    scored = [text.ids[first:end] for _, first, end in places]
    logprobs, tokens, right = np.zeros(len(places)), 0, 0
    for rows, part in score_batches(model, prompts, scored, batch_size=batch_size, prefix=prefix):
        logprobs[rows] = part.logprobs
        tokens += int(part.num_tokens.sum())
        right += int(part.num_greedy.sum())
        yield TextScore(-math.fsum(logprobs), tokens, right)


def text_records(found: TextScore, text: Text) -> list[dict[str, Any]]:
    """Long rows: loss, perplexities, bits per byte, accuracy. 700 nats stand for any more."""

    def row(metric: str, value: float, weight: float) -> dict[str, Any]:
        return {"metric": metric, "value": value, "weight": weight}

    loss = found.nats / found.num_tokens
    rows = [
        row("loss", loss, found.num_tokens),
        row("perplexity", math.exp(min(loss, 700.0)), found.num_tokens),
    ]
    if text.num_words:
        each = found.nats / text.num_words
        rows.append(row("word_perplexity", math.exp(min(each, 700.0)), text.num_words))
    if text.num_bytes:
        bits = found.nats / math.log(2) / text.num_bytes
        rows.append(row("bits_per_byte", bits, text.num_bytes))
    accuracy = ratio(found.num_right, found.num_tokens)
    return [*rows, row("accuracy", accuracy, found.num_tokens)]


UNITS = {
    "loss": ("nats per token", "tokens"),
    "perplexity": ("per token", "tokens"),
    "word_perplexity": ("per word", "words"),
    "bits_per_byte": ("bits per byte", "bytes"),
    "accuracy": ("of tokens", "tokens"),
}


def text_table(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a metric, a column a scheme of positions."""
    several = len({row["positions"] for row in records}) > 1
    table: dict[str, dict[str, Any]] = {}
    for row in records:
        named = table.setdefault(row["metric"], {"metric": row["metric"]})
        named[row["positions"] if several else "value"] = row["value"]
    for row in records:
        unit, of = UNITS[row["metric"]]
        table[row["metric"]] |= {"unit": unit, "of": f"{row['weight']:,} {of}"}
    return list(table.values())
