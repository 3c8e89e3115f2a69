"""Span corruption (Raffel et al. 2020 §3.1.4): hidden spans of a text are the decoder's targets.

A row is a window of text as T5 has it: with data.pack a stretch of the documents one after another,
which see each other, else a document or a piece of one. All that is drawn is a function of (seed,
epoch, row).
"""

import numpy as np

from jaxformer.config import SpanCorruptionConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.drawn import SPANS, Windows, words
from jaxformer.data.objectives import Row, seq2seq
from jaxformer.data.tokenizers import Tokenizer


class SpanRows:
    """Rows of a source with sentinels for its hidden spans, and a target of what they hide.

    `windows` were made with lookahead 0 and as many tokens as fill a source of `length`: a full
    window fills source and target. `num_tokens` is what targets have of all tokens, and their
    sentinels, </s> and rounding left aside.
    """

    def __init__(
        self,
        windows: Windows,
        cfg: SpanCorruptionConfig,
        length: int,
        tokenizer: Tokenizer,
        seed: int,
    ):
        self._windows, self._cfg, self._seed = windows, cfg, seed
        self._lengths = length, cfg.target_length(length)
        self._sentinels = tokenizer.sentinels()
        self._start, self._end = tokenizer.start_id, tokenizer.eos_id
        self.num_tokens = round(windows.num_tokens * cfg.rate * (1 + 1 / cfg.length))
        self.num_bytes = 0
        self.fingerprint = fingerprint("spans", windows.fingerprint, seed, length, cfg.to_dict())

    def __len__(self) -> int:
        return len(self._windows)

    def row(self, epoch: int, index: int) -> Row:
        tokens, segments = self._windows.window(epoch, index)
        ids = tokens[segments > 0]
        hidden, spans = self._cfg.spans(len(ids))
        drawn = words(self._seed, SPANS, epoch, index, 2 * len(tokens)).reshape(2, -1)
        kept = cut_at_random(len(ids) - hidden, spans, drawn[0])
        source, target = hide(ids, kept, cut_at_random(hidden, spans, drawn[1]), self._sentinels)
        start, end = ([token] for token in (self._start, self._end))
        target = np.concatenate([start, target, end]) if spans else target
        return seq2seq([np.append(source, end)], [target], *self._lengths)


def cut_at_random(total: int, parts: int, words: np.ndarray) -> np.ndarray:
    """Sizes int[parts] of 1 or more that add up to `total`, all such equally likely.

    words: uint64, one for each place between two of `total`. No parts: a single one, which is all.
    """
    cuts = np.sort(np.argsort(words[: total - 1], kind="stable")[: max(parts, 1) - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


def hide(
    ids: np.ndarray, kept: np.ndarray, hidden: np.ndarray, sentinels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(source, target): kept[0] tokens, a sentinel for the next hidden[0], kept[1] tokens, …; and
    each sentinel before what it stands for. Nothing hidden leaves the ids and an empty target."""
    ends = np.cumsum(np.stack([kept, hidden], 1).reshape(-1))
    parts = np.split(ids, ends[:-1])
    if not hidden.sum():
        return ids, ids[:0]
    source = [np.append(part, s) for part, s in zip(parts[::2], sentinels, strict=False)]
    target = [np.append(s, part) for part, s in zip(parts[1::2], sentinels, strict=False)]
    return np.concatenate(source), np.concatenate(target)
