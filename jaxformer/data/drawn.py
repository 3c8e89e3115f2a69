"""Rows that are drawn anew in every epoch: what is hidden, where a prefix ends."""

import numpy as np

from jaxformer.config import MaskedLmConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.objectives import Masking, masked_lm, num_masked, prefix_lm
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.data.tokenizers import Tokenizer

Windows = DocumentRows | PackedRows
PREFIX, MASK = 1, 2  # streams of random words; packing has 0


class PrefixRows:
    """Rows of a causal language model with a prefix, its length a function of (seed, epoch, row).

    `num_tokens` is what an epoch supervises on average.
    """

    def __init__(self, windows: Windows, seed: int):
        self._windows, self._seed = windows, seed
        self.num_tokens = (windows.num_tokens + len(windows)) // 2
        self.num_bytes = 0
        self.fingerprint = fingerprint("prefix", windows.fingerprint, seed)

    def __len__(self) -> int:
        return len(self._windows)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        row = self._windows.row(epoch, index)
        most = int(row["segment_ids"].max(initial=1))
        return prefix_lm(row, words(self._seed, PREFIX, epoch, index, most))


class MaskedRows:
    """Rows with hidden tokens, drawn from (seed, epoch, row): an epoch hides others than the last.

    `windows` were made with lookahead 0. `num_tokens` is the share of all tokens that is hidden,
    special tokens and rounding left aside.
    """

    def __init__(self, windows: Windows, cfg: MaskedLmConfig, tokenizer: Tokenizer, seed: int):
        self._windows, self._seed = windows, seed
        special = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id]
        special += [tokenizer.pad_id] * tokenizer.has_pad
        is_ordinary = np.ones(tokenizer.vocab_size, bool)
        is_ordinary[[i for i in special if i >= 0]] = False
        ordinary = np.flatnonzero(is_ordinary).astype(np.int32)
        self._masking = Masking(
            cfg.rate, cfg.mask, cfg.random, tokenizer.mask_id, is_ordinary, ordinary
        )
        self.num_tokens = num_masked(windows.num_tokens, cfg.rate)
        self.num_bytes = 0
        self.fingerprint = fingerprint("masked", windows.fingerprint, seed, cfg.to_dict())

    def __len__(self) -> int:
        return len(self._windows)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        tokens, segment_ids = self._windows.window(epoch, index)
        drawn = words(self._seed, MASK, epoch, index, 3 * len(tokens))
        return masked_lm(tokens, segment_ids, drawn.reshape(3, -1), self._masking)


def words(seed: int, stream: int, epoch: int, index: int, count: int) -> np.ndarray:
    """uint64[count]: raw Philox words, which are the same in every version of numpy."""
    generator = np.random.Philox(key=[seed, epoch], counter=[0, index, stream, 0])
    return generator.random_raw(count)
