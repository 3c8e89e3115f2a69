"""Goodput: every second is counted once, work that a kill undid as lost."""

import jax
import pytest

from jaxformer.training import clock as module
from jaxformer.training.clock import COMPILING, Clock


@pytest.fixture
def time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return passes


def test_each_second_is_of_one_part(time):
    clock = Clock()
    time(2)
    clock.to("step")
    time(10)
    with clock.on("evaluation"):
        time(3)
    time(1)
    with clock.on("save"):
        time(4)
    assert {k: v for k, v in clock.seconds().items() if v} == {
        "start": 2,
        "step": 11,
        "evaluation": 3,
        "save": 4,
    }
    assert clock.goodput() == 0.55
    assert (
        clock.summary() == "goodput 55.0% of 20.0 s: step 11.0, start 2.0, evaluation 3.0, save 4.0"
    )


def test_compiling_is_taken_out_of_what_it_interrupts(time):
    clock = Clock()
    with clock.watching_compiler():
        with clock.on("evaluation"):
            time(5)
            jax.monitoring.record_event_duration_secs(COMPILING, 4.0, fun_name="f")
            jax.monitoring.record_event_duration_secs("/other", 1.0)
        with clock.on("compile"):  # the first step: counted as a whole already
            time(7)
            jax.monitoring.record_event_duration_secs(COMPILING, 6.0)
    jax.monitoring.record_event_duration_secs(COMPILING, 9.0)
    seconds = clock.seconds()
    assert (seconds["evaluation"], seconds["compile"]) == (1, 11)


def test_a_resumed_run_goes_on_and_counts_what_was_lost(time):
    clock = Clock()
    before, last = {"step": 10.0, "save": 1.0}, {"step": 14.0, "save": 1.0, "evaluation": 2.0}
    clock.resume(before, last)
    clock.to("step")
    time(4)
    assert {k: v for k, v in clock.seconds().items() if v} == {"step": 14, "save": 1, "lost": 6}
    clock.resume({}, {})
    assert clock.seconds()["lost"] == 6
