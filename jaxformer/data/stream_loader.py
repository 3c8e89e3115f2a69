"""Batches of a stream: every process reads the same rows and keeps its slice of each batch."""

import zlib
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from jaxformer.data.loader import Batch, slice_of, stack
from jaxformer.data.streams import RowStream, State

AHEAD = 2  # batches that a thread prepares


class StreamLoader:
    """Iterates over batches from a state on; has what loader.Loader has but random access.

    `state()` is that of the batch which was taken last, whatever a thread has read ahead.
    """

    def __init__(
        self,
        source: RowStream,
        batch_size: int,
        state: State | None = None,
        process_index: int = 0,
        process_count: int = 1,
    ):
        self.source = source
        self.step = state["step"] if state else 0  # of the batch that comes next
        part = slice_of(batch_size, process_index, process_count, "train.batch_size")
        batches = _Batches(source, batch_size, part, state.get("stream") if state else None)
        ahead = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=AHEAD)
        self._batches = iter(ahead)
        self._ids: list[int] = []

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch, self._ids = next(self._batches)
        self.step += 1
        return batch

    def state(self) -> State:
        """All that is needed to go on: a JSON value."""
        return {"step": self.step, "stream": self._batches.get_state()}

    def batch_ids(self, step: int) -> list[int]:
        """Checksums of the rows of all processes in the batch that was taken last, of `step`."""
        assert step == self.step - 1, "a stream has no other batch"
        return self._ids

    def close(self) -> None:
        """Ends the thread that reads ahead, and with it the loader."""
        if hasattr(self, "_batches"):
            self._batches.close()
            del self._batches  # grain closes it again when it is deleted, which must not be last


class _Batches(grain.IterDataset):
    def __init__(self, source: RowStream, batch_size: int, part: slice, state: State | None):
        super().__init__()
        self.source, self.batch_size, self.part, self.state = source, batch_size, part, state

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self)


class _Iterator(grain.DatasetIterator):
    def __init__(self, batches: _Batches):
        super().__init__()
        self._of = batches
        self._rows = batches.source.rows(batches.state)

    def __next__(self) -> tuple[Batch, list[int]]:
        ids, kept, numbers = [], [], []
        for place in range(self._of.batch_size):
            (tokens, segment_ids), number = next(self._rows)
            ids.append(zlib.crc32(segment_ids.tobytes(), zlib.crc32(tokens.tobytes())))
            if self._of.part.start <= place < self._of.part.stop:
                kept.append(self._of.source.make(tokens, segment_ids, 0, number))
                numbers.append(number)
        return stack(kept, np.array(numbers, np.int64)), ids

    def get_state(self) -> dict[str, Any]:
        return self._rows.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._rows = self._of.source.rows(state)
