"""The folder of checkpoints on the disk: which there are, which are whole, which are kept.

Of one process, and blind to what a checkpoint holds but for its sums and its validation loss.
"""

import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from jaxformer.checkpoint.sums import damage
from jaxformer.checkpoint.writer import TEMPORARY
from jaxformer.errors import UserError

DELETED = ".deleted"


class Unreadable(UserError):
    """A checkpoint whose files are damaged, as opposed to one of another model."""


class Folder:
    """The checkpoints below `directory`, each a folder named by its step."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.whole: set[int] = set()  # steps whose sums are known to be right
        self._damaged: list[Unreadable] = []

    def clean(self) -> None:
        """Makes the folder, or removes what killed saves and removals left in it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in (f"*{TEMPORARY}*", f"*{DELETED}*"):
            for leftover in self.directory.glob(name):
                shutil.rmtree(leftover)

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints on disk, oldest first."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))

    def check(self, step: int) -> None:
        """Raises Unreadable where the files of a checkpoint are not what they were."""
        folder = self.directory / str(step)
        if step not in self.whole and (what := damage(folder)):
            mend = "remove it to go on from an older one"
            raise Unreadable(f"{folder}", f"is damaged ({what})", mend)
        self.whole.add(step)

    def newest(self) -> int | None:
        """Returns the newest whole checkpoint; None where none was ever saved.

        Says on stderr which newer ones are damaged or gone; `set_aside` moves the damaged ones.
        Raises UserError where there were checkpoints and none is left that can be read.
        """
        steps, marked = self.steps(), self._marked()
        self._damaged = []
        for step in reversed(steps):
            try:
                self.check(step)
            except Unreadable as error:
                self._damaged.append(error)
                continue
            told = [f"{error.where}: {error.what}" for error in self._damaged]
            if marked > steps[-1]:
                told.insert(0, f"{self.directory / str(marked)}: was saved and is gone")
            for line in told:
                print(f"warning: {line}, using {step}", file=sys.stderr)
            return step
        if self._damaged:
            raise self._damaged[0]
        if marked:
            what = f"has no checkpoint although step {marked} was saved"
            raise UserError(f"{self.directory}", what, "bring one back or use another workdir")
        return None

    def set_aside(self) -> None:
        """Renames what `newest` found damaged to STEP.unreadable, so that STEP can be saved."""
        for error in self._damaged:
            os.rename(error.where, _free(f"{error.where}.unreadable"))
        if self._damaged:
            self._mark(self.steps()[-1])
        self._damaged = []

    def saved(self, step: int, keep_latest: int, keep_best: int) -> None:
        """Marks a checkpoint as the last that was saved, and removes those that are not kept.

        A kill meanwhile leaves no half of a checkpoint.
        """
        self._mark(step)
        steps = self.steps()
        kept = {*steps[-keep_latest:], *self.best()[:keep_best]}
        for old in set(steps) - kept:
            target = _free(f"{self.directory / str(old)}{DELETED}")
            os.rename(self.directory / str(old), target)
            shutil.rmtree(target, ignore_errors=True)  # a reader may hold it: the next start does

    def best(self) -> list[int]:
        """Returns the steps that have a validation loss, the lowest first."""
        losses = {step: self._loss(step) for step in self.steps()}
        known = {step: loss for step, loss in losses.items() if loss is not None}
        return sorted(known, key=lambda step: (known[step], step))

    def _loss(self, step: int) -> float | None:
        try:
            return read_meta(self.directory / str(step))["validation_loss"]
        except (OSError, ValueError, KeyError):  # damaged: whoever restores it is told
            return None

    def _marked(self) -> int:
        """The step that was saved last, be it here still or not; 0 where that is not known."""
        try:
            return int((self.directory.parent / ".saved").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def _mark(self, step: int) -> None:
        temporary = self.directory.parent / ".saved.tmp"
        temporary.write_text(f"{step}\n", encoding="utf-8")
        os.replace(temporary, temporary.with_suffix(""))


def read_meta(folder: Path) -> dict[str, Any]:
    """Reads what a checkpoint holds beside its arrays."""
    return json.loads((folder / "meta" / "metadata").read_text(encoding="utf-8"))


def _free(path: str) -> str:
    """The path, numbered where it is taken."""
    names = itertools.chain([path], (f"{path}{n}" for n in itertools.count(2)))
    return next(name for name in names if not os.path.exists(name))
