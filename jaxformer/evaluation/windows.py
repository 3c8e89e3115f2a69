"""Text cut in windows of one length: a causal language model's quality by context length.

At every length the same tokens are predicted, each once, from the window that it falls in. Two
more sets of weights tell what a longer window changes: `beyond` has the tokens whose input stands
at a position that training never had, and `last` the same few tokens at every length, those that
end a longest window, each with a whole window before it. (The mean over windows falls with their
length by itself: fewer tokens stand at a start, with little before them.)
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxformer import losses
from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.cache import TokenCache
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.objectives import causal_lm
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import Batch, Sums
from jaxformer.evaluation.lengths import fits
from jaxformer.models import forward

LAST = 16  # tokens at the end of each longest window


@dataclasses.dataclass(frozen=True)
class ByPlace:
    """Nats per token beyond the trained length, and of the last tokens of longest windows."""

    needs_task = False

    def sums(self, model: Any, batch: Mapping[str, jax.Array]) -> Sums:
        logits, targets = forward(model, batch).logits, batch["targets"]
        return {
            f"loss_{name}": losses.cross_entropy(logits, targets, batch[name])
            for name in ("last", "beyond")
        }


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a text is cut, which all lengths share."""

    pack: bool  # documents are joined, as in training, or stand alone
    num_tokens: int  # the first tokens of the text that are predicted from
    longest: int  # of all lengths
    last: int  # tokens at the end of each window of that length
    trained: int  # length of the windows in training


class TextWindows:
    """Windows of `length` inputs that do not overlap, and what more it takes to predict `last`."""

    num_bytes, fingerprint = 0, ""

    def __init__(self, cache: TokenCache, length: int, cut: Cut):
        self.length = length
        self._cache, self._cut = cache, cut
        self._windows: list[tuple[int, int, bool]] = []  # start, end of its text, is on the grid
        self._ends: set[int] = set()  # of longest windows
        for first, end in _texts(cache, cut.pack):
            stop = min(end - 1, cut.num_tokens)  # the last token has no next one
            ends = range(first + cut.longest, stop + 1, cut.longest)
            others = [e - length for e in ends if (e - first) % length]
            self._windows += [(start, end, True) for start in range(first, stop, length)]
            self._windows += [(start, end, False) for start in others]
            self._ends.update(ends)
        self.num_tokens = cut.num_tokens

    def __len__(self) -> int:
        return len(self._windows)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        """A row of `causal_lm` with `last` and `beyond`, float32[L], weights like its own."""
        del epoch
        start, end, on_grid = self._windows[index]
        offsets = self._cache.offsets
        ids = self._cache.tokens[start : min(end, start + self.length + 1)]
        document = np.searchsorted(offsets, start + np.arange(len(ids)), side="right")
        tokens, segments = np.zeros((2, self.length + 1), np.int32)
        tokens[: len(ids)] = ids
        segments[: len(ids)] = document - document[0] + 1
        row = causal_lm(tokens, segments)
        index_L = np.arange(self.length)
        counted_L = row["weights"] * (start + index_L < self._cut.num_tokens)
        is_last_L = (index_L >= self.length - self._cut.last) & (start + self.length in self._ends)
        weights_L = counted_L * np.float32(on_grid)
        return row | {
            "weights": weights_L,
            "last": counted_L * is_last_L,
            "beyond": weights_L * (row["positions"] >= self._cut.trained),
        }

    def batches(self, batch_size: int, bound: int) -> Iterator[Batch]:
        """Batches of about `batch_size` windows of the trained length, in tokens."""
        del bound  # no window is wider than its length
        rows = max(1, batch_size * self._cut.trained // self.length)
        return evaluation_batches(self, min(rows, len(self)))


def cut_lengths(
    data: Data, cfg: RunConfig, lengths: tuple[int, ...], *, strict: bool
) -> list[TextWindows]:
    """The validation text in windows of every length, shortest first.

    Where no document fills a window, `strict` raises UserError; otherwise that length and all above
    it are left out. Raises UserError for a model that does not read plain text from left to right.
    """
    source = data.validation
    if cfg.objective.kind != "causal_lm" or not isinstance(source, PackedRows | DocumentRows):
        what = f"are given, but objective.kind = {cfg.objective.kind}"
        mend = "only causal_lm, of text or a task, is evaluated by length: leave them out"
        raise UserError("lengths", what, mend)
    if lengths[0] < 1:
        raise UserError("lengths", "have 0", "a text is read in windows of at least 1 token")
    cache, pack = source.cache, isinstance(source, PackedRows)
    tokens = int(cache.offsets[-1])
    tokens = min(tokens, cfg.eval.max_rows * cfg.data.length or tokens)
    room = max(min(end - 1, tokens) - first for first, end in _texts(cache, pack))
    if strict and lengths[-1] > room:
        what = f"have {lengths[-1]}, but the validation data fill windows of up to {room} tokens"
        raise UserError("lengths", what, "evaluate shorter ones, or raise eval.max_rows")
    fitting = [n for n in lengths if n <= room and fits(cfg, n, n, strict)]
    if not fitting:
        return []
    cut = Cut(pack, tokens, fitting[-1], min(LAST, fitting[0]), cfg.data.length)
    return [TextWindows(cache, length, cut) for length in fitting]


def _texts(cache: TokenCache, pack: bool) -> list[tuple[int, int]]:
    """Where each text that windows are cut from starts and ends: a document, or all of them."""
    if pack:
        return [(0, int(cache.offsets[-1]))]
    return list(itertools.pairwise(cache.offsets.tolist()))
