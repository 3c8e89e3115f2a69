"""What earlier processes of a run wrote to metrics.jsonl, and time that goes on from there."""

import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of a file up to a step, those after it, and those that cannot be read.

    A last line without an end was cut short by a kill and counts as none.
    """

    kept: list[bytes]
    later: list[dict[str, Any]]
    unreadable: int
    last: dict[str, Any]  # of those kept


def read_lines(path: Path, step: float) -> Lines:
    """Reads a metrics file, which need not be there."""
    found = Lines([], [], 0, {})
    unreadable, last = 0, {}
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if not line.endswith(b"\n"):
            continue
        values = _parse(line)
        if values is None:
            unreadable += 1
        elif values["step"] > step:
            found.later.append(values)
        else:
            found.kept.append(line)
            last = values
    return dataclasses.replace(found, unreadable=unreadable, last=last)


def go_back(path: Path, step: int) -> Lines:
    """Leaves only the lines up to `step`, by rename; a file that is damaged is kept beside."""
    lines = read_lines(path, step)
    if not path.exists():
        return lines
    if lines.unreadable:
        beside = _free(path.with_name(path.name + ".unreadable"))
        shutil.copyfile(path, beside)
        what = f"{lines.unreadable} lines cannot be read and are left out, {beside.name} has all"
        print(f"warning: {path}: {what}", file=sys.stderr, flush=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(b"".join(lines.kept))
    os.replace(temporary, path)
    return lines


def last_step(path: Path) -> int | None:
    """The step of the newest line that can be read."""
    return read_lines(path, float("inf")).last.get("step")


class WallClock:
    """The time of day, which never goes back: not when the clock is set, nor below `after`."""

    def __init__(self, after: float = 0.0):
        self._offset = max(time.time(), after) - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._offset + time.monotonic()


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None


def _free(path: Path) -> Path:
    """The path, numbered where it is taken."""
    taken = path
    number = 1
    while taken.exists():
        number += 1
        taken = path.with_name(f"{path.name}{number}")
    return taken
