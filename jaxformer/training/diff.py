"""Where two runs part: the first step and quantity that differ, and the first tensor.

Runs are compared by the lines of metrics.jsonl that both have, whose hash chains speak for the
steps in between too, and by the newest checkpoint that both have, bit by bit. With a tolerance (for
other devices, processes or microbatches) the data must still be the same, losses and gradient norms
may differ by that share, and bits are not looked at.
"""

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from jaxformer.checkpoint import Checkpoints
from jaxformer.command import FLAGS, OK, start
from jaxformer.errors import UserError
from jaxformer.training.metrics import TIMED

DIFFERENT = 1
FIRST = ("data", "loss", "grad_norm")  # what is named before anything else of a line
BITS = ("chain", "parameters")
USAGE = """\
usage: python -m jaxformer.training.diff RUN_A RUN_B [--rtol=R]

  Prints the first step and quantity in which two runs of train.py differ.
  Exit status: 0 equal, 1 different, 2 bad input.

  --rtol    losses and gradient norms may differ by this share, for runs on other devices or
            processes: bits are not compared then; default 0, the same bits
"""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A quantity that differs at a step; '' as quantity is no difference in what both have."""

    step: int
    quantity: str
    values: tuple[Any, Any]
    note: str = ""

    def __str__(self) -> str:
        a, b = self.values
        note = f" ({self.note})" if self.note else ""
        return f"step {self.step}: {self.quantity} differs: {a} and {b}{note}"


def read_lines(workdir: str | os.PathLike[str]) -> dict[tuple[int, str], dict[str, Any]]:
    """The lines of a run's metrics.jsonl by (step, split), a torn last one left out."""
    path = Path(workdir) / "metrics.jsonl"
    try:
        raw = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise UserError(str(path), what, "give the --workdir of a train.py run")
    lines = {}
    for number, text in enumerate(raw, 1):
        try:
            values = json.loads(text)
            lines[int(values["step"]), str(values["split"])] = values
        except (ValueError, KeyError, TypeError):
            if number < len(raw) or text.endswith(b"\n"):
                what = f"line {number} is not a line of a run's metrics"
                raise UserError(str(path), what, "remove it or train the run again")
    return lines


def compare_lines(a: Path, b: Path, rtol: float = 0.0) -> Difference | None:
    """The first difference between the metrics of two runs; None if all that both have is equal."""
    lines_a, lines_b = read_lines(a), read_lines(b)
    common = sorted(lines_a.keys() & lines_b.keys(), key=lambda key: (key[0], key[1] != "train"))
    if not common:
        raise UserError(f"{a} and {b}", "have no step in common", "compare runs that do")
    before = 0
    for step, split in common:
        line_a, line_b = lines_a[step, split], lines_b[step, split]
        for name in _names(line_a, line_b, rtol):
            values = line_a.get(name), line_b.get(name)
            exact = 0.0 if name == "data" else rtol
            if not _equal(*values, exact):
                between = f"of one of the steps {before + 1} to {step}"
                note = between if name in ("data", "chain") and step > before + 1 else ""
                shown = name if split == "train" else f"{name} ({split})"
                return Difference(step, shown, values, note)
        before = step if split == "train" else before
    return None


def compare_arrays(a: Path, b: Path) -> Difference | None:
    """The first tensor that differs in the newest checkpoint that both runs have."""
    saved = [Checkpoints(workdir, read_only=True) for workdir in (a, b)]
    try:
        common = set(saved[0].steps()) & set(saved[1].steps())
        if not common:
            return None
        step = max(common)
        arrays_a, arrays_b = (checkpoints.arrays(step) for checkpoints in saved)
    finally:
        for checkpoints in saved:
            checkpoints.close()
    differing = list(_differing(arrays_a, arrays_b))
    if not differing:
        return None
    path, index, values = differing[0]
    where = f"{path}{list(index)}" if index is not None else path
    return Difference(step, where, values, f"first of {len(differing)} arrays that differ")


def _differing(
    a: dict[str, np.ndarray], b: dict[str, np.ndarray]
) -> Iterator[tuple[str, tuple[int, ...] | None, tuple[Any, Any]]]:
    """(path, index of the first element, both values) of each array that differs, params first."""
    for path in sorted(
        a.keys() | b.keys(), key=lambda path: (not path.startswith("params/"), path)
    ):
        kinds = [_kind(arrays.get(path)) for arrays in (a, b)]
        if kinds[0] != kinds[1]:
            yield path, None, (kinds[0], kinds[1])
            continue
        bits_a, bits_b = (_bits(arrays[path]) for arrays in (a, b))
        if (bits_a != bits_b).any():
            index = tuple(np.argwhere(bits_a != bits_b)[0].tolist())
            yield path, index, (a[path][index].item(), b[path][index].item())


def _names(a: dict[str, Any], b: dict[str, Any], rtol: float) -> list[str]:
    """The quantities of a pair of lines, in the order in which a difference is told."""
    names = [name for name in {**a, **b} if name not in (*TIMED, "step", "split")]
    if rtol:
        return [name for name in FIRST if name in names]
    return sorted(names, key=lambda n: (FIRST.index(n) if n in FIRST else 9, n in BITS))


def _equal(a: Any, b: Any, rtol: float) -> bool:
    if rtol and isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=rtol)
    return a == b


def _kind(array: np.ndarray | None) -> str:
    return "absent" if array is None else f"{array.dtype}{list(array.shape)}"


def _bits(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array).reshape(array.shape)
    return array if array.dtype.kind in "iub" else array.view(f"u{array.dtype.itemsize}")


def last_step(workdir: Path) -> int:
    """The last step that a run told of."""
    return max((step for step, split in read_lines(workdir) if split == "train"), default=0)


def _diff(run_a: str, run_b: str) -> int:
    jax.config.update("jax_platforms", "cpu")  # accelerators may be busy with the runs
    a, b = Path(run_a), Path(run_b)
    if not 0 <= FLAGS.rtol < 1:
        raise UserError("--rtol", f"is {FLAGS.rtol}", "give 0 to below 1")
    found = [compare_lines(a, b, FLAGS.rtol)]
    found += [] if FLAGS.rtol else [compare_arrays(a, b)]
    for difference in found:
        if difference is not None:
            print(difference)
    if any(found):
        return DIFFERENT
    ends = last_step(a), last_step(b)
    if ends[0] != ends[1]:
        shorter = run_a if ends[0] < ends[1] else run_b
        print(f"no difference up to step {min(ends)}, where {shorter} ends (of {max(ends)} steps)")
        return DIFFERENT
    last = read_lines(a).get((ends[0], "train"), {})
    chain = last.get("chain" if not FLAGS.rtol else "data", "")
    print(f"equal: {ends[0]} steps, {'data' if FLAGS.rtol else 'chain'} {chain}")
    return OK


def main() -> None:
    flags.DEFINE_float("rtol", 0.0, "Share by which losses and gradient norms may differ.")
    start(_diff, USAGE, num_arguments=2)


if __name__ == "__main__":
    main()
