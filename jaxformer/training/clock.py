"""Goodput: where the seconds of a run went, over all its restarts.

`step` is training; `start` reads checkpoints and makes the first state; `compile` is the first step
of a process and what XLA compiled later; `data_wait`, `evaluation` and `save` are the time in which
the loop waited for each; `lost` is the time of work that a kill made a later process do again. Time
between processes and before the loop's start is nobody's.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping

import jax

PARTS = ("step", "start", "compile", "data_wait", "evaluation", "save", "lost")
COMPILING = "/jax/core/compile/backend_compile_duration"


class Clock:
    """Counts the seconds of one part at a time."""

    def __init__(self):
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._part, self._since = "start", time.perf_counter()

    def resume(self, before: Mapping[str, float], dropped: Mapping[str, float]) -> None:
        """Goes on from a checkpoint's seconds; `dropped` are the last that were told after it."""
        for name in PARTS:
            self._seconds[name] += before.get(name, 0.0)
        self._seconds["lost"] += max(0.0, sum(dropped.values()) - sum(before.values()))

    def to(self, part: str) -> None:
        """Ends the part that was counted and begins another."""
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now

    @contextlib.contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Counts for a part within, then for the one before again."""
        before = self._part
        self.to(part)
        try:
            yield
        finally:
            self.to(before)

    @contextlib.contextmanager
    def watching_compiler(self) -> Iterator[None]:
        """Within, what XLA compiles counts as compile, whatever part it interrupts."""

        def move(event: str, seconds: float) -> None:
            if event == COMPILING and self._part != "compile":
                self._seconds["compile"] += seconds
                self._seconds[self._part] -= seconds

        # What it is called with besides is JAX's matter.
        listener = lambda event, duration_secs, **_: move(event, duration_secs)  # noqa: E731
        jax.monitoring.register_event_duration_secs_listener(listener)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(listener)

    def seconds(self) -> dict[str, float]:
        """All parts up to now."""
        self.to(self._part)
        return {name: round(max(0.0, value), 3) for name, value in self._seconds.items()}

    def goodput(self) -> float:
        """The share of the time that trained."""
        seconds = self.seconds()
        total = sum(seconds.values())
        return round(seconds["step"] / total, 4) if total else 0.0

    def summary(self) -> str:
        """One line for the end of a run."""
        seconds = self.seconds()
        parts = ", ".join(
            f"{name.replace('_', ' ')} {value:.1f}" for name, value in seconds.items() if value
        )
        return f"goodput {self.goodput():.1%} of {sum(seconds.values()):.1f} s: {parts}"
