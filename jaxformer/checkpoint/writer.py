"""Writing a checkpoint in the background, whole or not at all, and what that may fail with."""

import functools
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from jaxformer.checkpoint.arrays import flatten, nest
from jaxformer.checkpoint.sums import write_sums
from jaxformer.errors import UserError

TEMPORARY = ".orbax-checkpoint-tmp"
SETTLE_SECONDS = 10
# Orbax measures its patience by a clock that may jump: a week is never over within a save. A save
# that fails before it has made its folders must not leave threads that wait for them.
PATIENCE = {"timeout_secs": 7 * 24 * 3600, "create_directories_asynchronously": False}


class Writer:
    """Writes one checkpoint at a time below `directory`; `step` is the one under way."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.step: int | None = None
        self._before: set[threading.Thread] = set()
        logging.getLogger("absl").addFilter(_is_not_of_orbax)  # what it logs is raised here
        _leave_closed_loops_unheard()
        options = ocp.options.AsyncOptions
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(async_options=options(**PATIENCE)),
            state=ocp.PyTreeCheckpointHandler(),
            meta=ocp.JsonCheckpointHandler(),
        )
        finish = options(**PATIENCE, post_finalization_callback=self._write_sums)
        self._orbax = ocp.AsyncCheckpointer(handler, async_options=finish)

    def start(self, step: int, state: Any, meta: Mapping[str, Any]) -> None:
        """Begins to write once the arrays are copied; they may be donated after."""
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(nest(flatten(state))), meta=ocp.args.JsonSave(dict(meta))
        )
        self.step, self._before = step, set(threading.enumerate())
        try:
            self._orbax.save(self.directory / str(step), args=args)
        except Exception as error:
            raise self._failed(error)

    def check(self) -> bool:
        """Whether the write under way has ended; raises what it failed with."""
        if self.step is not None and (self.directory / str(self.step)).exists():
            return True
        try:
            self._orbax.check_for_errors()
        except Exception as error:
            raise self._failed(error)
        return False

    def wait(self) -> None:
        """Waits until the checkpoint is there; raises what its write failed with."""
        try:
            self._orbax.wait_until_finished()
        except Exception as error:
            raise self._failed(error)
        self.step = None

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._orbax.close()
            logging.getLogger("absl").removeFilter(_is_not_of_orbax)

    def _write_sums(self) -> None:
        """Runs between the last write and the rename that makes the folder a checkpoint."""
        (folder,) = self.directory.glob(f"{self.step}{TEMPORARY}*")
        write_sums(folder)

    def _failed(self, error: Exception) -> Exception:
        """Ends the save that failed; its error, as one line where it is the disk's matter."""
        self.step = None
        for thread in set(threading.enumerate()) - self._before:
            if type(thread).__module__.startswith("orbax"):
                thread.join(SETTLE_SECONDS)  # other parts: at exit they would complain
        text, reason = " ".join(str(error).split()), ""
        if isinstance(error, OSError):
            reason = error.strerror or text
        elif isinstance(error, ValueError) and re.match("[A-Z_]+: Error writing", text):
            reason = re.sub(r" \[.*", "", text).rsplit(": ", 1)[-1]  # as TensorStore ends it
        if not reason:
            return error
        mend = "make room or mend it: the same command goes on from the newest checkpoint"
        return UserError(f"{self.directory}", f"cannot be written ({reason})", mend)


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


def _leave_closed_loops_unheard() -> None:
    """Where one array's write fails, those of the others end when nobody waits for them any more.

    Each then complains from a thread of TensorStore that the loop which awaited it is closed.
    """
    before = sys.unraisablehook
    if getattr(before, "func", None) is not _unless_closed_loop:
        sys.unraisablehook = functools.partial(_unless_closed_loop, before)


def _unless_closed_loop(before: Callable[[Any], None], unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
        before(unraisable)
