"""Checkpoints of a run: Orbax behind our names.

A checkpoint holds `state` (a TrainState as nested dicts of arrays, keyed by path) and `meta` (JSON:
resolved config, version, fingerprints of tokenizer and data, validation loss). Saving is
asynchronous and atomic: a killed save leaves a temporary folder, never half a checkpoint. Restoring
is strict: every path, shape and dtype must be the one saved, and arrays land on the shardings of
the target, so a run may continue on another mesh.
"""

import contextlib
import itertools
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jaxformer.errors import UserError
from jaxformer.sharding import path_of

MAX_DIFFERENCES = 5
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
SETTLE_SECONDS = 0.5


class Checkpoints:
    """The checkpoints of one run directory, under WORKDIR/checkpoints.

    The newest `keep_latest` are kept, and besides them the `keep_best` of lowest validation loss.
    With `read_only` nothing on disk is created, cleaned or moved.
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
        if not read_only:
            self.directory.mkdir(parents=True, exist_ok=True)
            for leftover in self.directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover)
        latest = policies.LatestN(keep_latest)
        best = policies.BestN(
            get_metric_fn=_rank, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
        )
        keep = policies.AnyPreservationPolicy([latest, best]) if keep_best else latest
        self._manager: ocp.CheckpointManager | None = None
        if self.directory.is_dir():
            with _quiet():
                self._manager = ocp.CheckpointManager(
                    self.directory,
                    options=ocp.CheckpointManagerOptions(
                        preservation_policy=keep, read_only=read_only, create=False
                    ),
                    item_handlers={
                        "state": ocp.PyTreeCheckpointHandler(),
                        "meta": ocp.JsonCheckpointHandler(),
                    },
                )

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints on disk, oldest first."""
        return sorted(self._manager.all_steps()) if self._manager else []

    def latest_step(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def best_step(self) -> int | None:
        """Returns the step of lowest validation loss among the checkpoints that have one."""
        losses = {step: self.meta(step)["validation_loss"] for step in self.steps()}
        known = {step: loss for step, loss in losses.items() if loss is not None}
        return min(known, key=lambda step: (known[step], step)) if known else None

    def save(
        self, step: int, state: Any, meta: Mapping[str, Any], validation_loss: float | None = None
    ) -> None:
        """Starts writing a checkpoint; an error of the previous write surfaces here."""
        assert self._manager is not None
        loss = validation_loss if _is_finite(validation_loss) else None
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(_nest(_flatten(state))),
            meta=ocp.args.JsonSave({**meta, "step": step, "validation_loss": loss}),
        )
        metrics = None if loss is None else {"loss": loss}
        if not self._manager.save(step, args=args, metrics=metrics):
            raise RuntimeError(f"checkpoint {step} was not saved: the folder has {self.steps()}")

    def meta(self, step: int) -> dict[str, Any]:
        """Reads what was saved beside the arrays."""
        manager = self._open(step)
        with self._reading(step):
            args = ocp.args.Composite(meta=ocp.args.JsonRestore())
            return dict(manager.restore(step, args=args)["meta"])

    def restore(self, step: int, abstract_state: Any) -> Any:
        """Restores a state onto the shapes, dtypes and shardings of `abstract_state`.

        Raises UserError where the checkpoint cannot be read or is of another model or optimizer.
        """
        wanted = _flatten(abstract_state)
        self._check(step, wanted, self._saved(step))
        return self._read(step, abstract_state, wanted)

    def restore_params(self, step: int, abstract_params: Any) -> Any:
        """Restores the parameters alone; strict about them, blind to the optimizer."""
        wanted = _flatten({"params": abstract_params})
        saved = {p: leaf for p, leaf in self._saved(step).items() if p.startswith("params/")}
        self._check(step, wanted, saved)
        return self._read(step, {"params": abstract_params}, wanted)["params"]

    def restore_latest(self, abstract_state: Any) -> tuple[int, Any] | None:
        """Restores the newest readable checkpoint; None where there is no checkpoint at all.

        Unreadable ones that are newer are set aside as STEP.unreadable with a line on stderr.
        Raises UserError where checkpoints exist and none can be read.
        """
        failures: list[Unreadable] = []
        for step in reversed(self.steps()):
            try:
                state = self.restore(step, abstract_state)
            except Unreadable as error:
                failures.append(error)
                continue
            for failure in failures:
                print(f"warning: {failure.where}: {failure.what}, using {step}", file=sys.stderr)
                os.rename(failure.where, _free(f"{failure.where}.unreadable"))
            if failures:
                self._open(step).reload()
            return step, state
        if failures:
            raise failures[0]
        return None

    def wait(self) -> None:
        """Waits until everything is on disk and raises if it could not be written."""
        if self._manager:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        if self._manager:
            self._manager.close()

    def _open(self, step: int) -> ocp.CheckpointManager:
        if self._manager is None or step not in self._manager.all_steps():
            raise UserError(
                f"{self.directory}",
                f"has no checkpoint of step {step}",
                f"it has {', '.join(map(str, self.steps())) or 'none'}",
            )
        return self._manager

    def _saved(self, step: int) -> dict[str, Any]:
        manager = self._open(step)
        with self._reading(step):
            return _flatten(manager.item_metadata(step)["state"].tree)

    def _read(self, step: int, target: Any, wanted: dict[str, Any]) -> Any:
        abstract = _nest(wanted)
        args = ocp.args.PyTreeRestore(
            item=abstract,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=True,
        )
        manager = self._open(step)
        with self._reading(step):
            restored = manager.restore(step, args=ocp.args.Composite(state=args))["state"]
        leaves = _flatten(restored)
        return jax.tree.unflatten(jax.tree.structure(target), [leaves[path] for path in wanted])

    def _check(self, step: int, wanted: dict[str, Any], saved: dict[str, Any]) -> None:
        lines = []
        paths = wanted.keys() | saved.keys()
        for path in sorted(paths, key=lambda path: (not path.startswith("params/"), path)):
            new, old = _describe(wanted.get(path)), _describe(saved.get(path))
            if new != old:
                lines.append(f"{path} is {old}, the config says {new}")
        if lines:
            more = len(lines) - MAX_DIFFERENCES
            listed = "; ".join(lines[:MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
            raise UserError(
                f"{self.directory / str(step)}",
                f"is of another shape: {listed}",
                "use the config it was saved with or another workdir",
            )

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """Turns what Orbax raises at damaged files into one Unreadable.

        Arrays are read at once: when one fails, its event loop closes and each other read tells
        stderr so a moment later. These are caught here.
        """
        before = sys.unraisablehook
        sys.unraisablehook = lambda a: None if _loop_closed(a.exc_value) else before(a)
        try:
            yield
        except Exception as error:
            # A torn array comes as a bare Exception around what the file system said.
            cause = error.__cause__ if type(error) is Exception and error.__cause__ else error
            if not isinstance(cause, UNREADABLE):
                raise
            time.sleep(SETTLE_SECONDS)
            reason = " ".join(str(cause).split())[:120]
            raise Unreadable(
                f"{self.directory / str(step)}",
                f"cannot be read ({type(cause).__name__}: {reason})",
                "remove it to go on from an older one",
            ) from error
        finally:
            sys.unraisablehook = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax warns of every folder that is opened only to be read."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class Unreadable(UserError):
    """A checkpoint whose files are damaged, as opposed to one of another model."""


def _flatten(tree: Any) -> dict[str, Any]:
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def _free(path: str) -> str:
    """The path, numbered where it is taken."""
    names = itertools.chain([path], (f"{path}{n}" for n in itertools.count(2)))
    return next(name for name in names if not os.path.exists(name))


def _describe(leaf: Any) -> str:
    return "absent" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def _loop_closed(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and "loop is closed" in str(error)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _rank(metrics: Any) -> float:
    return float(metrics["loss"])
