"""Rows of fixed length as a pure function of (cache, seed, epoch, index)."""

import functools
from typing import NamedTuple, Protocol

import numpy as np

from jaxformer.data.cache import TokenCache, fingerprint
from jaxformer.data.objectives import causal_lm


class RowSource(Protocol):
    """Training examples by random access; the same call always gives the same row.

    A row has tokens, targets, segment_ids, positions (int32[L]) and weights (float32[L]).
    `num_tokens` counts the supervised tokens of an epoch, `num_bytes` the UTF-8 bytes that they
    stand for (0: unknown).
    """

    num_tokens: int
    num_bytes: int
    fingerprint: str

    def __len__(self) -> int: ...

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]: ...


class _Epoch(NamedTuple):
    order: np.ndarray  # documents in the order of this epoch
    bounds: np.ndarray  # where each starts in their concatenation, and the total
    offset: int  # where row 0 starts


class PackedRows:
    """Concatenated documents cut in rows of `length` inputs, each read with its next token.

    An epoch puts the documents in an order drawn from (seed, epoch), joins them in a circle and
    starts to cut at an offset drawn in [0, length). Row r has the inputs r·length … of the circle,
    the last row is padded, so every pair (token, next token) of every document is supervised
    exactly once an epoch, and the join of two documents never. Without `shuffle` every epoch is
    the documents in order from offset 0.
    """

    def __init__(self, cache: TokenCache, length: int, seed: int, shuffle: bool):
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.cache = cache
        self.num_tokens = int(np.maximum(cache.lengths - 1, 0).sum())
        self.num_bytes = int(cache.bytes.sum())
        self.fingerprint = fingerprint("packed", cache.fingerprint, length, seed, shuffle)
        self._total = int(cache.offsets[-1])
        self._epoch = functools.lru_cache(maxsize=4)(self._draw)  # batches straddle epochs

    def __len__(self) -> int:
        return -(-self._total // self.length)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        order, bounds, offset = self._epoch(epoch if self.shuffle else 0)
        first = index * self.length
        count = min(self.length, self._total - first)  # inputs of this row
        place = (offset + first + np.arange(count + 1)) % self._total
        document = np.searchsorted(bounds, place, side="right") - 1
        within = place - bounds[document]
        tokens = np.zeros(self.length + 1, np.int32)
        segments = np.zeros(self.length + 1, np.int32)
        tokens[: count + 1] = self.cache.tokens[self.cache.offsets[order[document]] + within]
        starts = within == 0
        starts[0] = True
        segments[: count + 1] = np.cumsum(starts)
        return causal_lm(tokens, segments)

    def _draw(self, epoch: int) -> _Epoch:
        """Raw Philox words are the same in every version of numpy; its permutations need not be."""
        lengths = self.cache.lengths
        order, offset = np.arange(len(lengths)), 0
        if self.shuffle:
            words = np.random.Philox(key=[self.seed, epoch]).random_raw(len(lengths) + 1)
            order = np.argsort(words[1:], kind="stable")
            offset = int(words[0] % self.length)
        bounds = np.concatenate([[0], np.cumsum(lengths[order])])
        return _Epoch(order, bounds, offset)


class DocumentRows:
    """One document a row, padded; a longer one gives several rows of consecutive windows.

    Windows overlap by the token that is the last target of one and the first input of the next,
    so every pair of a document is supervised exactly once. All epochs have the same rows.
    """

    def __init__(self, cache: TokenCache, length: int):
        self.length, self.cache = length, cache
        pairs = np.maximum(cache.lengths - 1, 0)
        self.num_tokens = int(pairs.sum())
        self.num_bytes = int(cache.bytes.sum())
        self.fingerprint = fingerprint("documents", cache.fingerprint, length)
        self._bounds = np.concatenate([[0], np.cumsum(-(-pairs // length))])  # rows before each

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        del epoch
        document = int(np.searchsorted(self._bounds, index, side="right")) - 1
        start, end = self.cache.offsets[document : document + 2]
        start += (index - self._bounds[document]) * self.length
        ids = self.cache.tokens[start : min(end, start + self.length + 1)]
        tokens = np.zeros(self.length + 1, np.int32)
        tokens[: len(ids)] = ids
        return causal_lm(tokens, (np.arange(self.length + 1) < len(ids)).astype(np.int32))
