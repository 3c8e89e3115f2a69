"""Rows of several sources, mixed by weight: which source a row is of follows from (seed, epoch)."""

import functools
import logging
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxformer.data.cache import fingerprint
from jaxformer.data.order import draw_key, shuffled
from jaxformer.data.packing import RowSource
from jaxformer.errors import UserError

log = logging.getLogger(__name__)

# An epoch may not be longer than both: no weights that are meant make it so.
MOST_ROWS, MOST_TIMES = 10**7, 1000


class MixedRows:
    """An epoch has `counts[s]` rows of source s, spread evenly over it in an order of its own.

    Row k of a source stands in the epoch at (k + u) / counts[s], u uniform in [0, 1) and drawn from
    (seed, epoch), so every stretch of an epoch has about the weights of the whole. Each source is
    walked in shuffled epochs of its own. With `end` repeat they know nothing of the mixture's: what
    an epoch leaves of a source is what the next one begins with, and no row comes again before all
    others have. With `end` stop each epoch begins a new one of every source.

    Random access costs a sort of the epoch's rows when it begins.
    """

    def __init__(
        self,
        sources: Sequence[RowSource],
        names: Sequence[str],
        counts: list[int],
        end: str,
        seed: int,
    ):
        self.sources, self.names, self.counts = tuple(sources), tuple(names), counts
        self._goes_on, self._seed = end == "repeat", seed
        share = [n / len(source) for n, source in zip(counts, sources, strict=True)]
        self.num_tokens = round(sum(s.num_tokens * x for s, x in zip(sources, share, strict=True)))
        self.num_bytes = 0
        parts = [[source.fingerprint for source in sources], counts, end, seed]
        self.fingerprint = fingerprint("mixture", *parts)
        self._bounds = np.concatenate([[0], np.cumsum(counts)])
        self._order = functools.lru_cache(maxsize=2)(self._draw)  # batches straddle epochs

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        """The row at a place of an epoch, already in the order of training."""
        source, (its_epoch, row) = self.locate(epoch, index)
        return self.sources[source].row(its_epoch, row)

    def locate(self, epoch: int, place: int) -> tuple[int, tuple[int, int]]:
        """(source, (its epoch, its row)) of the row at a place of an epoch."""
        drawn = int(self._order(epoch)[place])
        source = int(np.searchsorted(self._bounds, drawn, side="right")) - 1
        use, size = drawn - int(self._bounds[source]), len(self.sources[source])
        if self._goes_on:
            its_epoch, its_place = divmod(epoch * self.counts[source] + use, size)
        else:
            its_epoch, its_place = epoch, use
        seed = seed_of(self._seed, source)
        return source, (its_epoch, shuffled(its_place, size, seed, its_epoch))

    def _draw(self, epoch: int) -> np.ndarray:
        words = np.random.Philox(key=[self._seed, epoch]).random_raw(len(self))
        jitter = (words >> np.uint64(11)) * 2.0**-53
        uses = np.concatenate([np.arange(n) for n in self.counts])
        times = (uses + jitter) / np.repeat(self.counts, self.counts)
        return np.argsort(times, kind="stable")


class JoinedRows:
    """The rows of one source after another, in their order: validation."""

    def __init__(self, sources: Sequence[RowSource]):
        self._sources = tuple(sources)
        self.num_tokens = sum(source.num_tokens for source in sources)
        sizes = [source.num_bytes for source in sources]
        self.num_bytes = sum(sizes) if all(sizes) else 0
        self.fingerprint = fingerprint("joined", *(source.fingerprint for source in sources))
        self._bounds = np.concatenate([[0], np.cumsum([len(source) for source in sources])])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        source = int(np.searchsorted(self._bounds, index, side="right")) - 1
        return self._sources[source].row(epoch, index - int(self._bounds[source]))


def mix(
    sources: Sequence[RowSource],
    names: Sequence[str],
    weights: Sequence[float],
    end: str,
    seed: int,
) -> MixedRows:
    """Mixes by weights, () for the sizes; says what is left out. Raises UserError."""
    sizes = [len(source) for source in sources]
    counts = rows_of_each(sizes, weights, end)
    for name, count in zip(names, counts, strict=True):
        if not count:
            what = f"give {name} no row in an epoch of {sum(counts)}"
            raise UserError("data.mixture.weights", what, "raise its weight or leave it out")
    if sum(counts) > max(MOST_ROWS, MOST_TIMES * sum(sizes)):
        what = f"make an epoch of {sum(counts):,} rows of {sum(sizes):,}"
        raise UserError("data.mixture.weights", what, "bring them closer, or set end = stop")
    left = {
        f"{size - count:,} of {size:,} of {name}"
        for name, size, count in zip(names, sizes, counts, strict=True)
        if count < size
    }
    if left:
        log.warning("rows left out of each epoch of the mixture: %s", ", ".join(sorted(left)))
    return MixedRows(sources, names, counts, end, seed)


def rows_of_each(sizes: Sequence[int], weights: Sequence[float], end: str) -> list[int]:
    """Rows of each source in an epoch, in proportion to the weights (() for the sizes).

    `end` stop takes the most rows that need none twice, repeat the fewest that have all of every
    source. Shares are rounded by the largest remainders.
    """
    exact = [Fraction(str(weight)) for weight in weights or sizes]
    shares = [weight / sum(exact) for weight in exact]
    lengths = [size / share for size, share in zip(sizes, shares, strict=True)]
    total = int(min(lengths)) if end == "stop" else -int(-max(lengths) // 1)
    counts = [int(total * share) for share in shares]
    remainders = [total * share - n for share, n in zip(shares, counts, strict=True)]
    by_size = sorted(range(len(sizes)), key=lambda s: -remainders[s])
    for source in by_size[: total - sum(counts)]:
        counts[source] += 1
    return counts


def seed_of(seed: int, source: int) -> int:
    """The seed of a source of a mixture."""
    return draw_key(seed, source + 1)
