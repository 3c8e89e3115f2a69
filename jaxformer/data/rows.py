"""Rows of pairs and of labelled texts as a pure function of (caches, index).

An example that is longer than a row is cut, and how many are is said once. What is cut off a target
includes its end, so that a model is never taught to stop early.
"""

import logging

import numpy as np

from jaxformer.data.cache import TokenCache, fingerprint
from jaxformer.data.objectives import classification, seq2seq, tagging

log = logging.getLogger(__name__)

OPEN = 64  # rows that may still take a pair
LABELS = {"sequence_classification": classification, "token_classification": tagging}


class PairRows:
    """A source and its target a row, or as many pairs as fit (`pack`), attention kept apart.

    Targets are <s> text </s>; with `keep_end` sources end with </s>, also where they are cut.
    Pairs go in an order drawn from `seed` (None: the order of the data) into the first of the last
    rows that has room, once and for all: all epochs
    have the same rows, which the loader shuffles.
    """

    def __init__(
        self,
        source: TokenCache,
        target: TokenCache,
        lengths: tuple[int, int],
        pack: bool,
        seed: int | None,
        keep_end: bool,
    ):
        self._source, self._target, self.lengths = source, target, lengths
        self._keep_end = keep_end
        sizes = source.lengths, np.maximum(target.lengths - 1, 0)
        self.num_cut = say_cut("sources", sizes[0], lengths[0])
        self.num_cut += say_cut("targets", sizes[1], lengths[1])
        self.num_tokens = int(np.minimum(sizes[1], lengths[1]).sum())
        self.num_bytes = 0 if self.num_cut else int(target.bytes.sum())
        parts = source.fingerprint, target.fingerprint, list(lengths), pack, seed if pack else None
        self.fingerprint = fingerprint("pairs", *parts)
        count = source.num_documents
        self._order, self._bounds = np.arange(count), np.arange(count + 1)
        if pack:
            fitting = np.stack(
                [np.minimum(n, most) for n, most in zip(sizes, lengths, strict=True)]
            )
            self._order, self._bounds = pack_pairs(fitting, np.array(lengths), seed)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        del epoch
        pairs = self._order[self._bounds[index] : self._bounds[index + 1]]
        sources = [cut(self._source.document(i), self.lengths[0], self._keep_end) for i in pairs]
        targets = [self._target.document(i)[: self.lengths[1] + 1] for i in pairs]
        return seq2seq(sources, targets, *self.lengths)


class LabelledRows:
    """One text a row with its class, or with classes of its tokens; all epochs have the same rows.

    `labels` holds for each text its class, or for each of its tokens the class + 1, 0 for none.
    """

    def __init__(
        self, tokens: TokenCache, labels: TokenCache, length: int, kind: str, keep_end: bool
    ):
        self._tokens, self._labels, self.length = tokens, labels, length
        self._is_tagged, self._make = kind == "token_classification", LABELS[kind]
        self._keep_end = keep_end
        self.num_cut = say_cut("texts", tokens.lengths, length)
        self.num_tokens, self.num_bytes = len(self), 0
        if self._is_tagged:
            rows = (self._label(i) for i in range(len(self)))
            self.num_tokens = sum(int(np.count_nonzero(labels)) for labels in rows)
        self.fingerprint = fingerprint(kind, tokens.fingerprint, labels.fingerprint, length)

    def __len__(self) -> int:
        return self._tokens.num_documents

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        del epoch
        ids = cut(self._tokens.document(index), self.length, self._keep_end)
        return self._make(ids, self._label(index), self.length)

    def _label(self, index: int) -> np.ndarray:
        labels = self._labels.document(index).astype(np.int32)
        return cut(labels, self.length, self._keep_end) if self._is_tagged else labels


def cut(ids: np.ndarray, length: int, keep_end: bool) -> np.ndarray:
    """The first `length` ids; `keep_end` takes the last one (</s>) instead of the length-th."""
    if len(ids) <= length:
        return ids
    return np.append(ids[: length - 1], ids[-1]) if keep_end else ids[:length]


def say_cut(what: str, lengths: np.ndarray, most: int) -> int:
    """Logs and returns how many are longer than `most`."""
    count = int((lengths > most).sum())
    if count:
        share = f"{count:,} of {len(lengths):,} {what}"
        log.warning("%s have more than %d tokens and are cut", share, most)
    return count


def pack_pairs(
    sizes_2N: np.ndarray, room_2: np.ndarray, seed: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """(order of the pairs, where each row starts in it): first fit among the last `OPEN` rows."""
    count = sizes_2N.shape[1]
    order = np.arange(count)
    if seed is not None:
        order = np.argsort(np.random.Philox(key=[seed, 0]).random_raw(count), kind="stable")
    rows: list[list[int]] = []
    left_R2 = np.zeros((0, 2), np.int64)  # room in the last rows
    for pair in order.tolist():
        size_2 = sizes_2N[:, pair]
        fits = np.flatnonzero((left_R2 >= size_2).all(-1))
        if not len(fits):
            rows.append([])
            left_R2 = np.concatenate([left_R2, room_2[None]])[-OPEN:]
            fits = [len(left_R2) - 1]
        left_R2[fits[0]] -= size_2
        rows[len(rows) - len(left_R2) + fits[0]].append(pair)
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return np.concatenate(rows).astype(np.int64), bounds
