"""Runs of the loop: resume is exact, wherever the run was cut, and refusals change nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import Preempted, TrainingFailed, UserError
from jaxformer.training.loop import train
from jaxformer.training.metrics import TIMED
from tests.training import tiny

CFG = tiny.config(**tiny.DROPOUT)


class At:
    """Calls `action` once, when the loop reports `step`."""

    def __init__(self, step, action):
        self.step, self.action, self.steps = step, action, []

    def update(self, step, metrics):
        self.steps.append(step)
        if step == self.step:
            self.step = -1
            self.action()


class Killed(BaseException):
    pass


def kill():
    raise Killed


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def lines(workdir):
    """The lines of metrics.jsonl without what depends on the clock."""
    found = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in TIMED} for line in found]


def saved(workdir, cfg=CFG, step=None):
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        step = checkpoints.latest_step() if step is None else step
        return checkpoints.restore(step, tiny.program(cfg).abstract)
    finally:
        checkpoints.close()


def files(workdir):
    return {
        path.relative_to(workdir): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(workdir.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("whole")
    shown = At(-1, kill)
    assert train(CFG, tiny.data(), workdir, progress=shown) == 12
    assert sorted(set(shown.steps)) == list(range(1, 13))
    return workdir


def assert_same_run(workdir, whole):
    jax.tree.map(np.testing.assert_array_equal, saved(workdir), saved(whole))
    assert lines(workdir) == lines(whole)


def test_run_directory(whole):
    assert [(line["step"], line["split"]) for line in lines(whole)] == [
        *[(2, "train"), (4, "train"), (4, "eval"), (6, "train"), (8, "train"), (8, "eval")],
        *[(10, "train"), (12, "train"), (12, "eval")],
    ]
    raw = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    names = {"loss", "tokens", "accuracy", "grad_norm", "learning_rate", "tokens_per_second"}
    assert names | {"mfu", "step_seconds", "data_wait", "time"} <= set(raw[1])
    assert raw[1]["tokens_per_second"] > 0
    assert 0 < raw[1]["mfu"] < 1
    assert 0 <= raw[1]["data_wait"] < 1
    checkpoints = Checkpoints(whole, read_only=True)
    assert checkpoints.steps() == [8, 12]
    meta = checkpoints.meta(12)
    checkpoints.close()
    assert meta["validation_loss"] == raw[-1]["loss"]
    assert meta["tokenizer"] == "tiny"
    assert meta["config"] == json.loads((whole / "config.json").read_text())


def test_nothing_is_compiled_after_the_first_evaluation_and_save(tmp_path):
    compiled, at_five = [], []

    def count(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        train(CFG, tiny.data(), tmp_path, progress=At(5, lambda: at_five.append(len(compiled))))
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert at_five[0] > 0
    assert len(compiled) == at_five[0]


def test_every_checkpoint_has_a_loss_where_the_best_are_kept(tmp_path):
    cfg = tiny.config(
        train__num_steps=6, train__eval_every=0, train__checkpoint_every=2, train__keep_best=1
    )
    train(cfg, tiny.data(), tmp_path)
    assert [line["step"] for line in lines(tmp_path) if line["split"] == "eval"] == [2, 4, 6]


@pytest.mark.parametrize("step", [1, 9])
def test_a_run_cut_off_and_resumed_is_bit_equal(step, whole, tmp_path):
    with pytest.raises(Killed):
        train(CFG, tiny.data(), tmp_path, progress=At(step, kill))
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert_same_run(tmp_path, whole)


def test_a_run_that_was_asked_to_stop_twice_and_resumed_is_bit_equal(whole, tmp_path, capfd):
    for ask in (3, 7):
        with pytest.raises(Preempted, match=f"SIGTERM: saved at step {ask + 1}") as caught:
            train(CFG, tiny.data(), tmp_path, progress=At(ask, terminate))
        assert caught.value.step == ask + 1
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert "resuming from step 8" in capfd.readouterr().err
    assert_same_run(tmp_path, whole)


SCRIPT = """
import sys
from tests.training import tiny
from jaxformer.training.loop import train

class Show:
    def update(self, step, metrics):
        print(step, flush=True)

print("begin", flush=True)
print("end", train(tiny.config(**tiny.DROPOUT), tiny.data(), sys.argv[1], progress=Show()))
"""


def start(workdir):
    environment = dict(os.environ) | {"PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(workdir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_process_killed_and_started_again_is_bit_equal(whole, tmp_path):
    """SIGKILL while or just after checkpoint 4 is written; the lock dies with the process."""
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "5":
            break
    with pytest.raises(UserError, match=f"is in use by process {process.pid}"):
        train(CFG, tiny.data(), tmp_path)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert_same_run(tmp_path, whole)
    assert not list((tmp_path / "checkpoints").glob("*tmp*"))


def test_a_second_signal_leaves_at_once(tmp_path):
    script = """
import os, signal, time
from jaxformer.training.signals import stop_on_signal
with stop_on_signal() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    while not stop.name: time.sleep(.001)
    print(stop.name, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    print("still here")
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": os.getcwd()},
    )
    assert done.stdout == "SIGTERM\n"
    assert done.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 10


def test_a_finished_run_says_so_and_changes_nothing(whole, capfd):
    before = files(whole)
    assert train(CFG, tiny.data(), whole) == 12
    assert "is finished" in capfd.readouterr().err
    after = files(whole)
    del before[Path("config.json")], after[Path("config.json")]
    assert after == before


def test_a_finished_run_may_be_extended(whole, tmp_path):
    short = tiny.config(train__num_steps=4, **tiny.DROPOUT)
    assert train(short, tiny.data(), tmp_path) == 4
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert_same_run(tmp_path, whole)


def test_a_run_continues_on_a_mesh(whole, tmp_path):
    with pytest.raises(Killed):
        train(CFG, tiny.data(), tmp_path, progress=At(9, kill))
    cfg = tiny.config(mesh__data=2, mesh__fsdp=4, **tiny.DROPOUT)
    assert train(cfg, tiny.data(), tmp_path) == 12
    for found, expected in zip(lines(tmp_path), lines(whole), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "seed was 0, now 1"),
        ({"model__dropout__residual": 0.1, "train__batch_size": 16}, "train.batch_size was 8, now"),
        ({"train__num_steps": 8}, "train.num_steps: 8 is below step 12"),
        ({"mesh__data": 3}, "mesh: data × fsdp = 3 × 1 but there are 8 devices"),
        ({"mesh__data": 4, "mesh__fsdp": 4}, "4 × 4 but there are 8"),
    ],
)
def test_a_restart_that_cannot_be_is_refused_and_changes_nothing(changes, words, whole):
    before = files(whole)
    with pytest.raises(UserError, match=words):
        train(tiny.config(**(tiny.DROPOUT | changes)), tiny.data(), whole)
    assert files(whole) == before


def test_a_restart_on_other_data_is_refused_and_changes_nothing(whole):
    before, data = files(whole), tiny.data()
    data.train = tiny.Rows(fingerprint="other rows")
    with pytest.raises(UserError, match="holds a run on other data"):
        train(CFG, data, whole)
    assert files(whole) == before


def test_microbatches_must_spread_over_the_mesh(tmp_path):
    cfg = tiny.config(mesh__data=-1, train__num_microbatches=2)
    with pytest.raises(UserError, match=r"train.batch_size: 8 rows do not divide evenly over 8"):
        train(cfg, tiny.data(), tmp_path)


def test_a_workdir_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        train(CFG, tiny.data(), tmp_path / "file" / "run")


def test_a_run_of_nothing_but_bad_updates_stops(tmp_path):
    data = tiny.data()
    data.train = tiny.Rows(weight=float("inf"))
    with pytest.raises(TrainingFailed, match="step 3: the last 3 updates were not finite"):
        train(tiny.config(train__max_skipped_steps=3), data, tmp_path)
    assert lines(tmp_path)[0]["loss"] is None
    assert lines(tmp_path)[0]["skipped"] == 2
