"""Batches as a pure function of (source, seed, step): the loader's whole state is the step.

Example number g = step * batch_size + b belongs to epoch g // n, where n is the number of rows, and
is row permutation(seed, epoch)[g mod n]; a mixture orders its epochs itself. Batches straddle
epochs; nothing is dropped or padded. Of a task it is what its sampler draws for g.
"""

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from jaxformer.data.mixture import MixedRows
from jaxformer.data.order import shuffled
from jaxformer.data.packing import RowSource
from jaxformer.data.tasks.rows import TaskRows
from jaxformer.errors import UserError

Batch = dict[str, np.ndarray]
ENDLESS = 2**53  # steps
READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)  # whole batches


class Loader:
    """Iterates over batches from `start_step` on, read ahead in threads.

    A batch has the arrays of a row stacked to [B, L], and `rows` int32[B], the example number
    modulo 2**31. With several processes each reads its contiguous slice of the global batch.
    """

    def __init__(
        self,
        source: RowSource,
        batch_size: int,
        seed: int,
        start_step: int = 0,
        process_index: int = 0,
        process_count: int = 1,
    ):
        self.source, self.seed = source, seed
        self.step = start_step  # of the batch that comes next
        self._batch_size = batch_size
        self._slice = slice_of(batch_size, process_index, process_count, "train.batch_size")
        self._batches: grain.DatasetIterator | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            batches = grain.MapDataset.source(_Batches(self))[self.step :]
            self._batches = iter(batches.to_iter_dataset(READ))
        batch = next(self._batches)
        self.step += 1
        return batch

    def batch(self, step: int) -> Batch:
        """The batch of any step."""
        examples = self._examples(step)
        if isinstance(self.source, TaskRows):
            return self.source.batch(int(examples[0]), len(examples))
        rows = [self.source.row(*self._locate(g)) for g in examples.tolist()]
        return stack(rows, examples)

    def batch_ids(self, step: int) -> list[int]:
        """Epoch * n + row of all processes' examples, which no two examples of a run share."""
        first = step * self._batch_size
        located = map(self._locate, range(first, first + self._batch_size))
        return [epoch * len(self.source) + row for epoch, row in located]

    def close(self) -> None:
        """Ends the threads that read ahead."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _examples(self, step: int) -> np.ndarray:
        return step * self._batch_size + np.arange(self._slice.start, self._slice.stop)

    def _locate(self, example: int) -> tuple[int, int]:
        epoch, place = divmod(example, len(self.source))
        if isinstance(self.source, MixedRows | TaskRows):  # epochs with an order of their own
            return epoch, place
        return epoch, shuffled(place, len(self.source), self.seed, epoch)

    def state(self) -> dict[str, Any]:
        """All that is needed to go on: a JSON value."""
        return {"step": self.step}


class _Batches:
    """The random-access view that grain maps over."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Batch:
        return self._loader.batch(int(index))


def evaluation_batches(
    source: RowSource,
    batch_size: int,
    max_rows: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """All rows (or the first `max_rows`) of epoch 0 in order.

    The last batch is filled with rows of weight 0 and segment 0, so that shapes never change and
    processes take the same number of batches.
    """
    total = min(len(source), max_rows) if max_rows else len(source)
    part = slice_of(batch_size, process_index, process_count, "eval.batch_size")
    for first in range(0, total, batch_size):
        examples = first + np.arange(part.start, part.stop)
        rows = [source.row(0, g) for g in examples.tolist() if g < total]
        blank = {k: np.zeros_like(v) for k, v in source.row(0, 0).items()}
        yield stack(rows + [blank] * (len(examples) - len(rows)), examples)


def stack(rows: list[dict[str, np.ndarray]], examples: np.ndarray) -> Batch:
    """A batch of rows with these numbers."""
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    batch["rows"] = (examples % 2**31).astype(np.int32)
    return batch


def slice_of(batch_size: int, index: int, count: int, where: str) -> slice:
    """A process's rows of a batch; UserError unless all have as many."""
    if batch_size % count:
        raise UserError(
            where,
            f"{batch_size} rows cannot be shared by {count} processes",
            f"give a multiple of {count}",
        )
    share = batch_size // count
    return slice(index * share, (index + 1) * share)
