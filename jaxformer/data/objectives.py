"""What a row of tokens is trained to predict, told by position and segment, never by token id.

Pure functions of a row and, where something is drawn, of raw 64-bit words: the same words give the
same row. Segment 0 is padding, 1, 2, … are documents.
"""

from typing import NamedTuple

import numpy as np

Row = dict[str, np.ndarray]


def causal_lm(tokens: np.ndarray, segment_ids: np.ndarray) -> Row:
    """Makes rows of length L that predict each next token; any leading axes.

    tokens, segment_ids: int[…, L + 1]. An input needs a next token, so a last token before padding
    is no input; the last token of a document before another document stays as an input of weight
    0. The end of a document is a target like any other, also where its token is the padding token.
    Positions restart at each segment.
    """
    here, after = segment_ids[..., :-1], segment_ids[..., 1:]
    is_input = (here > 0) & (after > 0)
    is_supervised = is_input & (here == after)
    return {
        "tokens": (tokens[..., :-1] * is_input).astype(np.int32),
        "targets": (tokens[..., 1:] * is_supervised).astype(np.int32),
        "segment_ids": (here * is_input).astype(np.int32),
        "positions": (positions(here) * is_input).astype(np.int32),
        "weights": is_supervised.astype(np.float32),
    }


def prefix_lm(row: Row, words: np.ndarray) -> Row:
    """Turns a row of `causal_lm` into one of a prefix language model (Raffel et al. 2020 §3.2.1).

    Of each document's n supervised inputs the first p are its `prefix` bool[L], which earlier
    tokens see too, and p is uniform on 1 … n; only what comes after the prefix is supervised, so
    p = 1 leaves a causal model. words: uint64, at least one for each document of the row.
    """
    prefix, weights = np.zeros(len(row["tokens"]), bool), row["weights"].copy()
    supervised = weights > 0
    documents = np.unique(row["segment_ids"][supervised])
    for document, word in zip(documents, words, strict=False):
        inputs = np.flatnonzero(supervised & (row["segment_ids"] == document))
        length = 1 + int(word % np.uint64(len(inputs)))
        prefix[inputs[:length]] = True
        weights[inputs[: length - 1]] = 0
    targets = np.where(weights > 0, row["targets"], 0).astype(np.int32)
    return row | {"prefix": prefix, "weights": weights, "targets": targets}


class Masking(NamedTuple):
    """How tokens are chosen and hidden: the shares of the config, and what stands in for them."""

    rate: float
    mask: float
    random: float
    mask_id: int
    is_ordinary: np.ndarray  # bool[V]: may be hidden or replace a token; special tokens may not
    ordinary: np.ndarray  # int32: the ids of those


def masked_lm(
    tokens: np.ndarray, segment_ids: np.ndarray, words: np.ndarray, masking: Masking
) -> Row:
    """Hides some tokens of a row, which are its targets (Devlin et al. 2019 §3.1).

    tokens, segment_ids: int[L], words: uint64[3, L]. Of the n ordinary tokens round(rate · n), but
    at least one, are chosen, all sets of that size equally likely. Each of them becomes the mask
    with probability `mask`, an ordinary token with probability `random`, and otherwise stays.
    """
    real = segment_ids > 0
    ordinary = np.flatnonzero(real & masking.is_ordinary[tokens])
    count = num_masked(len(ordinary), masking.rate)
    chosen = ordinary[np.argsort(words[0][ordinary], kind="stable")[:count]]
    fate = words[1] / 2.0**64
    drawn = masking.ordinary[(words[2] % np.uint64(len(masking.ordinary))).astype(np.int64)]
    hidden = np.where(fate < masking.mask, masking.mask_id, tokens)
    is_random = (fate >= masking.mask) & (fate < masking.mask + masking.random)
    hidden = np.where(is_random, drawn, hidden)
    is_chosen = np.zeros(len(tokens), bool)
    is_chosen[chosen] = True
    return {
        "tokens": (np.where(is_chosen, hidden, tokens) * real).astype(np.int32),
        "targets": (tokens * is_chosen).astype(np.int32),
        "segment_ids": segment_ids.astype(np.int32),
        "positions": (positions(segment_ids) * real).astype(np.int32),
        "weights": is_chosen.astype(np.float32),
    }


def num_masked(count: int, rate: float) -> int:
    """How many of `count` tokens are chosen."""
    return min(count, max(1, round(rate * count)))


def seq2seq(
    sources: list[np.ndarray], targets: list[np.ndarray], length: int, target_length: int
) -> Row:
    """A row of pairs, each target read with its source: segment i of one sees segment i of both.

    `sources` are whole; `targets` hold <s>, the text, </s>: inputs are all but the last, shifted
    right by one against what they predict. The sources fit into `length`, the inputs into
    `target_length`.
    """
    inputs, predicted = [t[:-1] for t in targets], [t[1:] for t in targets]
    segment_ids = _joined([np.full(len(t), i) for i, t in enumerate(inputs, 1)], target_length)
    source_segment_ids = _joined([np.full(len(s), i) for i, s in enumerate(sources, 1)], length)
    return {
        "source": _joined(sources, length),
        "source_segment_ids": source_segment_ids,
        "source_positions": _joined([np.arange(len(s)) for s in sources], length),
        "tokens": _joined(inputs, target_length),
        "targets": _joined(predicted, target_length),
        "segment_ids": segment_ids,
        "positions": _joined([np.arange(len(t)) for t in inputs], target_length),
        "weights": (segment_ids > 0).astype(np.float32),
    }


def classification(tokens: np.ndarray, labels: np.ndarray, length: int) -> Row:
    """A row of one text with a class for the whole of it: targets int32[], weights float32[]."""
    return _text(tokens, length) | {"targets": labels.astype(np.int32)[0], "weights": np.float32(1)}


def image_row(image: np.ndarray, label: int, length: int) -> Row:
    """A row of one image float32[H, W, C] with its class; `length` tokens will be made of it."""
    return {
        "tokens": image.astype(np.float32),
        "segment_ids": np.ones(length, np.int32),
        "positions": np.arange(length, dtype=np.int32),
        "targets": np.array(label, np.int32),
        "weights": np.array(1, np.float32),
    }


def tagging(tokens: np.ndarray, labels: np.ndarray, length: int) -> Row:
    """A row of one text with a class for some tokens: `labels` are classes + 1, or 0 for none."""
    labels = _joined([labels], length)
    targets, weights = np.maximum(labels - 1, 0), (labels > 0).astype(np.float32)
    return _text(tokens, length) | {"targets": targets, "weights": weights}


def positions(segment_ids: np.ndarray) -> np.ndarray:
    """0, 1, 2, … from each change of segment; any leading axes."""
    index = np.arange(segment_ids.shape[-1])
    starts = np.diff(segment_ids, axis=-1, prepend=-1) != 0
    return index - np.maximum.accumulate(np.where(starts, index, 0), axis=-1)


def _text(tokens: np.ndarray, length: int) -> Row:
    return {
        "tokens": _joined([tokens], length),
        "segment_ids": _joined([np.ones(len(tokens))], length),
        "positions": _joined([np.arange(len(tokens))], length),
    }


def _joined(parts: list[np.ndarray], length: int) -> np.ndarray:
    """The parts one after another, filled up with 0."""
    row, joined = np.zeros(length, np.int32), np.concatenate(parts)
    row[: len(joined)] = joined
    return row
