"""A progress line on stderr: a bar in a terminal, plain lines elsewhere."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Keeps a rich progress bar up to date."""

    def __init__(self, progress: Progress, num_steps: int):
        self._progress = progress
        self._task = progress.add_task("training", total=num_steps, values="")

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._progress.update(self._task, completed=step, values=_format(metrics))


class Lines:
    """Prints a line now and then: for logs that are files."""

    def __init__(self, num_steps: int, every: int, unit: str = "step"):
        self._num_steps, self._every, self._unit = num_steps, every, unit
        self._shown, self._eval_loss = "", None

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        line = f"{self._unit} {step}/{self._num_steps} {_format(metrics)}".rstrip()
        evaluated = metrics.get("eval_loss") != self._eval_loss
        due = evaluated or step % self._every == 0 or step == self._num_steps
        if not due or line == self._shown:
            return
        self._shown, self._eval_loss = line, metrics.get("eval_loss")
        print(line, file=sys.stderr, flush=True)


class Silent:
    """Shows nothing: of several processes one shows."""

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        del step, metrics


@contextlib.contextmanager
def show_progress(num_steps: int, log_every: int, unit: str = "step") -> Iterator[Bar | Lines]:
    """The progress display of a run of `num_steps`, or of as many of another `unit`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(num_steps, log_every, unit)
        return
    columns = (
        TextColumn(unit),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[values]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield Bar(progress, num_steps)


def _format(metrics: Mapping[str, Any]) -> str:
    shown = (
        ("loss", "loss", "{:.3f}"),
        ("eval_loss", "validation", "{:.3f}"),
        ("tokens_per_second", "tokens/s", "{:,.0f}"),
        ("mfu", "MFU", "{:.1%}"),
        ("skipped", "skipped", "{:d}"),
    )
    return "  ".join(
        f"{label} {form.format(metrics[name])}" for name, label, form in shown if metrics.get(name)
    )
