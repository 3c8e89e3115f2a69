"""From windows of text to rows of an objective; what is drawn is drawn anew in every epoch."""

from collections.abc import Callable

import numpy as np

from jaxformer.config import MaskedLmConfig, RunConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.objectives import Masking, Row, causal_lm, masked_lm, num_masked, prefix_lm
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.data.tokenizers import Tokenizer

Windows = DocumentRows | PackedRows
PREFIX, MASK, SPANS = 1, 2, 3  # streams of random words; packing has 0


# A window's tokens and segment ids, int32[length + lookahead], its epoch and number -> its row
MakeRow = Callable[[np.ndarray, np.ndarray, int, int], Row]


def lookahead(objective: str) -> int:
    """How many tokens a window has beyond a row."""
    return 0 if objective in ("masked_lm", "span_corruption") else 1


class PrefixRows:
    """Rows of a causal language model with a prefix, its length a function of (seed, epoch, row).

    `num_tokens` is what an epoch supervises on average.
    """

    def __init__(self, windows: Windows, seed: int):
        self._windows, self._make = windows, prefix_maker(seed)
        self.num_tokens = (windows.num_tokens + len(windows)) // 2
        self.num_bytes = 0
        self.fingerprint = fingerprint("prefix", windows.fingerprint, seed)

    def __len__(self) -> int:
        return len(self._windows)

    def row(self, epoch: int, index: int) -> Row:
        return self._make(*self._windows.window(epoch, index), epoch, index)


class MaskedRows:
    """Rows with hidden tokens, drawn from (seed, epoch, row): an epoch hides others than the last.

    `windows` were made with lookahead 0. `num_tokens` is the share of all tokens that is hidden,
    special tokens and rounding left aside.
    """

    def __init__(self, windows: Windows, cfg: MaskedLmConfig, tokenizer: Tokenizer, seed: int):
        self._windows, self._make = windows, mask_maker(cfg, tokenizer, seed)
        self.num_tokens = num_masked(windows.num_tokens, cfg.rate)
        self.num_bytes = 0
        self.fingerprint = fingerprint("masked", windows.fingerprint, seed, cfg.to_dict())

    def __len__(self) -> int:
        return len(self._windows)

    def row(self, epoch: int, index: int) -> Row:
        return self._make(*self._windows.window(epoch, index), epoch, index)


def row_maker(cfg: RunConfig, tokenizer: Tokenizer) -> MakeRow:
    """What turns a window into a row of the objective."""
    if cfg.objective.kind == "masked_lm":
        return mask_maker(cfg.objective.masked_lm, tokenizer, cfg.data_seed)
    if cfg.objective.kind == "prefix_lm":
        return prefix_maker(cfg.data_seed)
    return lambda tokens, segment_ids, _epoch, _index: causal_lm(tokens, segment_ids)


def prefix_maker(seed: int) -> MakeRow:
    def make(tokens: np.ndarray, segment_ids: np.ndarray, epoch: int, index: int) -> Row:
        row = causal_lm(tokens, segment_ids)
        most = int(row["segment_ids"].max(initial=1))
        return prefix_lm(row, words(seed, PREFIX, epoch, index, most))

    return make


def mask_maker(cfg: MaskedLmConfig, tokenizer: Tokenizer, seed: int) -> MakeRow:
    special = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id]
    special += [tokenizer.pad_id] * tokenizer.has_pad
    is_ordinary = np.ones(tokenizer.vocab_size, bool)
    is_ordinary[[i for i in special if i >= 0]] = False
    ordinary = np.flatnonzero(is_ordinary).astype(np.int32)
    masking = Masking(cfg.rate, cfg.mask, cfg.random, tokenizer.mask_id, is_ordinary, ordinary)

    def make(tokens: np.ndarray, segment_ids: np.ndarray, epoch: int, index: int) -> Row:
        drawn = words(seed, MASK, epoch, index, 3 * len(tokens))
        return masked_lm(tokens, segment_ids, drawn.reshape(3, -1), masking)

    return make


def words(seed: int, stream: int, epoch: int, index: int, count: int) -> np.ndarray:
    """uint64[count]: raw Philox words, which are the same in every version of numpy."""
    generator = np.random.Philox(key=[seed, epoch], counter=[0, index, stream, 0])
    return generator.random_raw(count)
