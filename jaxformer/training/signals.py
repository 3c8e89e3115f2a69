"""SIGTERM and SIGINT as a wish to stop at the next step."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stop:
    """`name` of the signal that asked for a stop; '' while none has."""

    name = ""


_waiting: list[Stop] = []  # a sweep's, and within it that of the run in progress


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Notes the first signal for the loop to see; a second one ends the process at once.

    Within another such block both are told.
    """
    stop = Stop()
    stop.name = _waiting[-1].name if _waiting else ""  # what came before this block began

    def handle(number: int, _: FrameType | None) -> None:
        if stop.name:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        for each in _waiting:
            each.name = signal.Signals(number).name

    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    _waiting.append(stop)
    try:
        yield stop
    finally:
        _waiting.remove(stop)
        for number, handler in before.items():
            signal.signal(number, handler)
