"""TensorBoard's event files, without TensorFlow and without threads: what fails is raised here."""

import itertools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

EVENTS: Any = event_pb2  # members are made at import, type checkers do not see them
SUMMARIES: Any = summary_pb2

_numbers = itertools.count()  # files of one process


class EventFile:
    """Scalars of a run that begins, or goes on, after `step`; later ones of older files are void.

    TensorBoard reads the files of a folder in the order of their names, hence the time in front.
    """

    def __init__(self, folder: Path, step: int, now: float):
        folder.mkdir(parents=True, exist_ok=True)
        process = f"{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        file = open(folder / f"events.out.tfevents.{now:017.6f}.{process}", "wb")  # noqa: SIM115
        self._records = RecordWriter(file)
        start = EVENTS.SessionLog(status=EVENTS.SessionLog.START)
        self._add(EVENTS.Event(wall_time=now, file_version="brain.Event:2"))
        self._add(EVENTS.Event(wall_time=now, step=step + 1, session_log=start))

    def write(self, step: int, now: float, values: Mapping[str, Any]) -> None:
        """Writes the numbers among the values by their tag."""
        scalars = [
            SUMMARIES.Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        summary = SUMMARIES.Summary(value=scalars)
        self._add(EVENTS.Event(wall_time=now, step=step, summary=summary))

    def close(self) -> None:
        self._records.close()

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()
