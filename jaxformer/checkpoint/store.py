"""The checkpoints of a run: saving, and restoring what is whole and what is wanted."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoint.arrays import check_arrays, flatten, read_arrays, saved_arrays
from jaxformer.checkpoint.folder import Folder, read_meta
from jaxformer.checkpoint.writer import Writer
from jaxformer.distributed import gather, is_alone, is_first, together
from jaxformer.errors import UserError
from jaxformer.globs import matching


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
        self._folder = Folder(self.directory)
        self._writer = None if read_only else Writer(self.directory)
        with together():
            if is_first() and not read_only:
                self._folder.clean()

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints on disk, oldest first."""
        return self._folder.steps()

    def latest_step(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def best_step(self) -> int | None:
        """Returns the step of lowest validation loss among the checkpoints that have one."""
        return next(iter(self._folder.best()), None)

    def newest(self) -> int | None:
        """Returns the newest whole checkpoint; None where none was ever saved.

        Says on stderr which newer ones are damaged or gone; `set_aside` moves the damaged ones.
        Raises UserError where there were checkpoints and none is left that can be read.
        """
        found: int | None = None
        with together():
            if is_first():
                found = self._folder.newest()
        found = gather(found)[0]
        if found is not None:
            self._folder.whole.add(found)  # in all processes: they open it together or not at all
        return found

    def set_aside(self) -> None:
        """Renames what `newest` found damaged to STEP.unreadable, so that STEP can be saved."""
        with together():
            if is_first():
                self._folder.set_aside()

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
        self._folder.whole.add(step)
        with together():
            if is_first():
                self._folder.saved(step, self._keep_latest, self._keep_best)

    def close(self) -> None:
        """Lets a write under way end; of several processes some may already be gone."""
        if self._writer is not None:
            self._writer.close()

    def meta(self, step: int) -> dict[str, Any]:
        """Reads what was saved beside the arrays."""
        return read_meta(self._open(step))

    def restore(self, step: int, abstract_state: Any) -> Any:
        """Restores a state onto the shapes, dtypes and shardings of `abstract_state`.

        Raises UserError where the checkpoint is damaged or of another model or optimizer.
        """
        folder, wanted = self._open(step), flatten(abstract_state)
        check_arrays(folder, wanted, saved_arrays(folder))
        leaves = read_arrays(folder, wanted)
        return jax.tree.unflatten(jax.tree.structure(abstract_state), list(leaves.values()))

    def restore_params(self, step: int, abstract_params: Any, name: str = "params") -> Any:
        """Restores the parameters alone; strict about them, blind to the optimizer.

        `name` is theirs in the state: 'ema' restores their average.
        """
        folder, wanted = self._open(step), flatten({name: abstract_params})
        saved = {p: leaf for p, leaf in saved_arrays(folder).items() if p.startswith(f"{name}/")}
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
        matched = matching("train.init_paths", leaves, patterns)
        wanted = {f"params/{path}": leaves[path] for path in matched}
        saved, mend = saved_arrays(folder), "leave what differs out of train.init_paths"
        check_arrays(folder, wanted, {path: saved[path] for path in wanted if path in saved}, mend)
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
        if step not in self._folder.whole:
            with together():
                if step not in self.steps():
                    listed = ", ".join(map(str, self.steps())) or "none"
                    what = f"has no checkpoint of step {step}"
                    raise UserError(f"{self.directory}", what, f"it has {listed}")
                if is_first():
                    self._folder.check(step)
            self._folder.whole.add(step)
        return self.directory / str(step)
