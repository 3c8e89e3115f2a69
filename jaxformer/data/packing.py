"""Rows of fixed length as a pure function of (cache, seed, epoch, index)."""

import functools
from typing import NamedTuple, Protocol

import numpy as np

from jaxformer.data.cache import TokenCache, fingerprint
from jaxformer.data.objectives import causal_lm


class RowSource(Protocol):
    """Training examples by random access; the same call always gives the same row.

    A row has tokens, targets, segment_ids, positions (int32[L]) and weights (float32[L]); other
    objectives add arrays, and a class of a whole text is a scalar (see objectives.py).
    `num_tokens` counts what an epoch supervises (tokens, or labelled texts), `num_bytes` the UTF-8
    bytes that it stands for (0: unknown).
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
    the documents in order from offset 0. With `lookahead` 0 there are windows without the next
    token and no rows (masked language models).
    """

    def __init__(
        self, cache: TokenCache, length: int, seed: int, shuffle: bool, lookahead: int = 1
    ):
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.cache, self._lookahead = cache, lookahead
        self.num_tokens = int(np.maximum(cache.lengths - lookahead, 0).sum())
        self.num_bytes = int(cache.bytes.sum())
        parts = ["packed", cache.fingerprint, length, seed, shuffle]
        self.fingerprint = fingerprint(*parts, *([] if lookahead else ["whole"]))
        self._total = int(cache.offsets[-1])
        self._epoch = functools.lru_cache(maxsize=4)(self._draw)  # batches straddle epochs

    def __len__(self) -> int:
        return -(-self._total // self.length)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        return causal_lm(*self.window(epoch, index))

    def window(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and segment ids, int32[length + lookahead]."""
        order, bounds, offset = self._epoch(epoch if self.shuffle else 0)
        first = index * self.length
        count = min(self.length, self._total - first) + self._lookahead
        place = (offset + first + np.arange(count)) % self._total
        document = np.searchsorted(bounds, place, side="right") - 1
        within = place - bounds[document]
        tokens, segments = np.zeros((2, self.length + self._lookahead), np.int32)
        tokens[:count] = self.cache.tokens[self.cache.offsets[order[document]] + within]
        starts = within == 0
        starts[0] = True
        segments[:count] = np.cumsum(starts)
        return tokens, segments

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
    so every pair of a document is supervised exactly once. All epochs have the same rows. With
    `lookahead` 0 windows do not overlap, and there are no rows (masked language models).
    """

    def __init__(self, cache: TokenCache, length: int, lookahead: int = 1):
        self.length, self.cache, self._lookahead = length, cache, lookahead
        inputs = np.maximum(cache.lengths - lookahead, 0)
        self.num_tokens = int(inputs.sum())
        self.num_bytes = int(cache.bytes.sum())
        parts = ["documents", cache.fingerprint, length]
        self.fingerprint = fingerprint(*parts, *([] if lookahead else ["whole"]))
        self._bounds = np.concatenate([[0], np.cumsum(-(-inputs // length))])  # rows before each

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        return causal_lm(*self.window(epoch, index))

    def window(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and segment ids, int32[length + lookahead]."""
        del epoch
        document = int(np.searchsorted(self._bounds, index, side="right")) - 1
        start, end = self.cache.offsets[document : document + 2]
        start += (index - self._bounds[document]) * self.length
        size = self.length + self._lookahead
        ids = self.cache.tokens[start : min(end, start + size)]
        tokens = np.zeros(size, np.int32)
        tokens[: len(ids)] = ids
        return tokens, (np.arange(size) < len(ids)).astype(np.int32)
