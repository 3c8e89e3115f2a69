"""Signals as a wish to stop, also in blocks within blocks."""

import os
import signal

from jaxformer.training.signals import stop_on_signal


def test_a_block_within_another_tells_both_and_gives_the_handler_back():
    with stop_on_signal() as outer:
        handler = signal.getsignal(signal.SIGTERM)
        with stop_on_signal() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (inner.name, outer.name) == ("SIGTERM", "SIGTERM")
        assert signal.getsignal(signal.SIGTERM) == handler
        with stop_on_signal() as later:
            assert later.name == "SIGTERM"  # a stop asked for before this block began
    with stop_on_signal() as fresh:
        assert fresh.name == ""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
