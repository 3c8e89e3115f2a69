"""The folder of checkpoints: which there are, which are whole, saving, keeping, restoring."""

import fnmatch
import itertools
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoint.arrays import check_arrays, flatten, read_arrays, saved_arrays
from jaxformer.checkpoint.sums import damage
from jaxformer.checkpoint.writer import TEMPORARY, Writer
from jaxformer.distributed import gather, is_alone, is_first, together
from jaxformer.errors import UserError

DELETED = ".deleted"


class Unreadable(UserError):
    """A checkpoint whose files are damaged, as opposed to one of another model."""


class Checkpoints:
    """The checkpoints of one run directory, under WORKDIR/checkpoints.

    The newest `keep_latest` are kept, and besides them the `keep_best` of lowest validation loss.
    With `read_only` nothing on disk is created, cleaned or moved. Of several processes all open
    the directory and call each method alike.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        keep_latest: int = 1,
        keep_best: int = 0,
        *,
        read_only: bool = False,
    ):
        self.directory = Path(workdir).absolute() / "checkpoints"
        self._keep_latest, self._keep_best = keep_latest, keep_best
        self._whole: set[int] = set()  # steps whose sums are known to be right
        self._damaged: list[Unreadable] = []
        self._writer = None if read_only else Writer(self.directory)
        with together():
            if is_first() and not read_only:
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

    def latest_step(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def best_step(self) -> int | None:
        """Returns the step of lowest validation loss among the checkpoints that have one."""
        return next(iter(self._best()), None)

    def newest(self) -> int | None:
        """Returns the newest whole checkpoint; None where none was ever saved.

        Says on stderr which newer ones are damaged or gone; `set_aside` moves the damaged ones.
        Raises UserError where there were checkpoints and none is left that can be read.
        """
        found: int | None = None
        with together():
            if is_first():
                found = self._find_newest()
        found = gather(found)[0]
        if found is not None:
            self._whole.add(found)  # in all processes: they open it together or not at all
        return found

    def set_aside(self) -> None:
        """Renames what `newest` found damaged to STEP.unreadable, so that STEP can be saved."""
        with together():
            if is_first() and self._damaged:
                for error in self._damaged:
                    os.rename(error.where, _free(f"{error.where}.unreadable"))
                self._mark(self.steps()[-1])
        self._damaged = []

    def save(
        self, step: int, state: Any, meta: Mapping[str, Any], validation_loss: float | None = None
    ) -> None:
        """Starts writing a checkpoint; an error of the previous write surfaces here."""
        assert self._writer is not None
        self.wait()
        if step in self.steps():
            raise RuntimeError(f"checkpoint {step} was not saved: the folder has {self.steps()}")
        finite = validation_loss is not None and math.isfinite(validation_loss)
        loss = validation_loss if finite else None
        self._writer.start(step, state, {**meta, "step": step, "validation_loss": loss})

    def check(self) -> None:
        """Raises what the write under way has failed with, where that is known; does not wait."""
        if self._writer is None or self._writer.step is None or not is_alone():
            return  # several processes hear of it together, at the next save
        if self._writer.check():
            self.wait()

    def wait(self) -> None:
        """Waits until everything is on disk and raises if it could not be written."""
        if self._writer is None or (step := self._writer.step) is None:
            return
        self._writer.wait()
        self._whole.add(step)
        with together():
            if is_first():
                self._mark(step)
                self._prune()

    def close(self) -> None:
        """Lets a write under way end; of several processes some may already be gone."""
        if self._writer is not None:
            self._writer.close()

    def meta(self, step: int) -> dict[str, Any]:
        """Reads what was saved beside the arrays."""
        return _read_meta(self._open(step))

    def restore(self, step: int, abstract_state: Any) -> Any:
        """Restores a state onto the shapes, dtypes and shardings of `abstract_state`.

        Raises UserError where the checkpoint is damaged or of another model or optimizer.
        """
        folder, wanted = self._open(step), flatten(abstract_state)
        check_arrays(folder, wanted, saved_arrays(folder))
        leaves = read_arrays(folder, wanted)
        return jax.tree.unflatten(jax.tree.structure(abstract_state), list(leaves.values()))

    def restore_latest(self, abstract_state: Any) -> tuple[int, Any] | None:
        """Restores the newest whole checkpoint, setting damaged ones aside; None if none is."""
        step = self.newest()
        if step is None:
            return None
        state = self.restore(step, abstract_state)
        self.set_aside()
        return step, state

    def restore_params(self, step: int, abstract_params: Any) -> Any:
        """Restores the parameters alone; strict about them, blind to the optimizer."""
        folder, wanted = self._open(step), flatten({"params": abstract_params})
        saved = {p: leaf for p, leaf in saved_arrays(folder).items() if p.startswith("params/")}
        check_arrays(folder, wanted, saved)
        leaves = read_arrays(folder, wanted)
        return jax.tree.unflatten(jax.tree.structure(abstract_params), list(leaves.values()))

    def restore_matching(
        self, step: int, abstract_params: Any, patterns: Sequence[str]
    ) -> dict[str, jax.Array]:
        """Restores the parameters whose path matches one of the globs, as {path: array}.

        Raises UserError where a pattern matches none, or one has another shape or dtype.
        """
        folder, leaves = self._open(step), flatten(abstract_params)
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(path, pattern) for path in leaves):
                what, mend = f"{pattern!r} matches no parameter", f"paths are like {min(leaves)}"
                raise UserError("train.init_paths", what, mend)
        matched = [p for p in leaves if any(fnmatch.fnmatchcase(p, glob) for glob in patterns)]
        wanted = {f"params/{path}": leaves[path] for path in matched}
        saved = saved_arrays(folder)
        check_arrays(folder, wanted, {path: saved[path] for path in wanted if path in saved})
        return dict(zip(matched, read_arrays(folder, wanted).values(), strict=True))

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Reads all arrays of a checkpoint by path, whatever model and mesh they are of."""
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        folder = self._open(step)
        wanted = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
            for path, leaf in sorted(saved_arrays(folder).items())
        }
        return jax.device_get(read_arrays(folder, wanted))

    def _open(self, step: int) -> Path:
        """The folder of a checkpoint whose sums are right."""
        if step not in self._whole:
            with together():
                if step not in self.steps():
                    listed = ", ".join(map(str, self.steps())) or "none"
                    what = f"has no checkpoint of step {step}"
                    raise UserError(f"{self.directory}", what, f"it has {listed}")
                if is_first() and (error := self._damage(step)):
                    raise error
            self._whole.add(step)
        return self.directory / str(step)

    def _damage(self, step: int) -> Unreadable | None:
        folder = self.directory / str(step)
        if step in self._whole or not (what := damage(folder)):
            self._whole.add(step)
            return None
        mend = "remove it to go on from an older one"
        return Unreadable(f"{folder}", f"is damaged ({what})", mend)

    def _find_newest(self) -> int | None:
        steps, marked = self.steps(), self._marked()
        self._damaged = []
        for step in reversed(steps):
            if error := self._damage(step):
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

    def _prune(self) -> None:
        """Removes what is not kept; a kill meanwhile leaves no half of a checkpoint."""
        steps = self.steps()
        kept = {*steps[-self._keep_latest :], *self._best()[: self._keep_best]}
        for step in set(steps) - kept:
            target = _free(f"{self.directory / str(step)}{DELETED}")
            os.rename(self.directory / str(step), target)
            shutil.rmtree(target, ignore_errors=True)  # a reader may hold it: the next start does

    def _best(self) -> list[int]:
        """Steps with a validation loss, the lowest first."""
        losses = {step: self._loss(step) for step in self.steps()}
        known = {step: loss for step, loss in losses.items() if loss is not None}
        return sorted(known, key=lambda step: (known[step], step))

    def _loss(self, step: int) -> float | None:
        try:
            return _read_meta(self.directory / str(step))["validation_loss"]
        except (OSError, ValueError, KeyError):  # damaged: whoever restores it is told
            return None


def _read_meta(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta" / "metadata").read_text(encoding="utf-8"))


def _free(path: str) -> str:
    """The path, numbered where it is taken."""
    names = itertools.chain([path], (f"{path}{n}" for n in itertools.count(2)))
    return next(name for name in names if not os.path.exists(name))
