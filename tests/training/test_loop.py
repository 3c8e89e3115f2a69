"""Runs of the loop: resume is exact, wherever the run was cut, and refusals change nothing."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import Preempted, TrainingFailed, UserError
from jaxformer.sharding import path_of
from jaxformer.training import loop
from jaxformer.training import workdir as workdirs
from jaxformer.training.events import EventFile
from jaxformer.training.loop import train
from jaxformer.training.metrics import TIMED
from jaxformer.training.signals import Stop
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


def test_a_process_killed_and_started_again_is_bit_equal(whole, tmp_path, capfd):
    """SIGKILL while or just after checkpoint 4 is written; the lock dies with the process."""
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "5":
            break
    named = f"process {process.pid} on {socket.gethostname()}"
    with pytest.raises(UserError, match=f"is in use by {re.escape(named)}, wait"):
        train(CFG, tiny.data(), tmp_path)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").read_text() == f"{process.pid} {socket.gethostname()}\n"
    assert train(CFG, tiny.data(), tmp_path) == 12
    err = capfd.readouterr().err
    assert f"taking over {tmp_path} from {named}, which ended without letting go" in err
    assert (tmp_path / ".lock").read_text() == ""
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


def test_a_restart_with_another_tokenizer_is_refused(whole):
    data = tiny.data()
    data.tokenizer.fingerprint = "other"
    with pytest.raises(UserError, match="holds a run with another tokenizer"):
        train(CFG, data, whole)


def test_a_lost_config_json_is_that_of_the_checkpoint(whole, tmp_path, capfd):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").unlink()
    before = files(tmp_path)
    with pytest.raises(UserError, match="holds a run of another config: seed was 0, now 1"):
        train(tiny.config(seed=1, **tiny.DROPOUT), tiny.data(), tmp_path)
    assert files(tmp_path) == before
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert "is finished" in capfd.readouterr().err
    assert (tmp_path / "config.json").read_text() == (whole / "config.json").read_text()


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (("checkpoints",), "has no checkpoint although step 12 was saved"),
        (("checkpoints", ".saved", "config.json"), "has metrics up to step 12 and no checkpoint"),
    ],
)
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(lost, words, whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for name in lost:
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = files(tmp_path)
    with pytest.raises(UserError, match=words):
        train(CFG, tiny.data(), tmp_path)
    assert files(tmp_path) == before


def test_a_run_killed_before_its_first_checkpoint_begins_again(whole, tmp_path, capfd):
    """Also where that was being written, of which a temporary folder stays behind."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (tmp_path / ".saved").unlink()
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp").mkdir(parents=True)
    text = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    early = "".join(line for line in text if json.loads(line)["step"] <= 8)
    (tmp_path / "metrics.jsonl").write_text(early)
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert "no checkpoint was saved by step 8: starting at step 0\n" in capfd.readouterr().err
    assert_same_run(tmp_path, whole)


def test_a_stop_before_the_first_step_compiles_nothing(tmp_path, monkeypatch):
    def asked():
        stop = Stop()
        stop.name = "SIGTERM"
        return contextlib.nullcontext(stop)

    monkeypatch.setattr(loop, "stop_on_signal", asked)
    with pytest.raises(Preempted, match="SIGTERM: before the first step, the same command"):
        train(CFG, tiny.data(), tmp_path, progress=At(1, kill))
    assert lines(tmp_path) == []


def test_parameters_of_another_run(whole, tmp_path, capfd):
    """Taken at step 0 and never again; the rest begins as it would have."""
    changes = {"train__init_from": str(whole), "train__init_paths": ("embedding/*", "*/query/*")}
    changes |= {"seed": 5, "train__num_steps": 1, "schedule__peak_value": 1e-12}
    cfg = tiny.config(**changes)
    assert train(cfg, tiny.data(), tmp_path) == 1
    line = f"parameters are those of {whole} at step 12: embedding/table, layers/0/attention/query"
    assert line in capfd.readouterr().err
    found, theirs, own = saved(tmp_path, cfg), saved(whole), tiny.program(cfg).state
    leaves = jax.tree_util.tree_leaves_with_path(found.params)
    others = zip(jax.tree.leaves(own.params), jax.tree.leaves(theirs.params), strict=True)
    for (keys, leaf), (mine, from_there) in zip(leaves, others, strict=True):
        taken = path_of(keys).startswith("embedding/") or "/query/" in path_of(keys)
        np.testing.assert_allclose(leaf, from_there if taken else mine, atol=1e-9)
    with pytest.raises(UserError, match=r"train\.init_paths was"):
        train(tiny.config(**(changes | {"train__init_paths": ("*",)})), tiny.data(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__init_from": "x"}, "train.init_paths: is empty while train.init_from is set"),
        ({"train__init_paths": ("*",)}, "train.init_paths: is set to"),
        ({"train__init_from": "x", "train__init_paths": ("*", "")}, "has an empty pattern"),
        ({"train__init_from": "x", "train__init_paths": "*"}, "takes a sequence"),
    ],
)
def test_what_to_take_of_another_run_is_said_in_full(changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        tiny.config(**changes)


def test_parameters_of_other_shapes_are_refused(whole, tmp_path):
    """All that differ are listed, and the directory stays free for the mended command."""
    paths = ("embedding/*", "*/query/*", "final_norm/*")
    cfg = tiny.config(train__init_from=str(whole), train__init_paths=paths, model__d_model=16)
    with pytest.raises(UserError) as caught:
        train(cfg, tiny.data(), tmp_path)
    line, count = str(caught.value), len(caught.value.details)
    assert line.startswith(f"{whole}/checkpoints/12: is of another shape: params/")
    assert "params/embedding/table is float32[11, 8], the config says float32[11, 16]" in line
    assert "params/final_norm/scale is float32[8], the config says float32[16]" in line
    assert line.endswith(", leave what differs out of train.init_paths")
    assert "\n" not in line and line.count(" the config says ") == (count - 2) // 2
    assert not (tmp_path / "config.json").exists()


def test_another_run_without_a_checkpoint_is_refused(tmp_path):
    taken = {"train__init_from": str(tmp_path / "none"), "train__init_paths": ("*",)}
    with pytest.raises(UserError, match=r"train.init_from: .*none has no checkpoint"):
        train(tiny.config(**taken), tiny.data(), tmp_path / "run")
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "run" / "config.json").exists()  # the mended command may go on here


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        ("ours here", True),
        ("1 another-host", True),
        (f"{2**22 + 1} here", False),  # no process has so high a number
        ("", False),
        ("torn", False),
    ],
)
def test_a_file_system_without_locks(holder, refused, tmp_path, monkeypatch, capfd):
    holder = holder.replace("ours", str(os.getpid())).replace("here", socket.gethostname())

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / ".lock").write_text(holder)
    if refused:
        with pytest.raises(UserError, match=r"is in use by process \d+ on .* remove .*\.lock"):
            with workdirs.locked(tmp_path):
                pass
        assert (tmp_path / ".lock").read_text() == holder
        return
    with workdirs.locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {socket.gethostname()}\n"
    taken = "taking over" in capfd.readouterr().err
    assert taken == holder.startswith(str(2**22 + 1))


def test_a_disk_that_is_full_in_the_middle_of_a_run_loses_nothing(whole, tmp_path, monkeypatch):
    """Metrics cannot be written at step 6; later they can, and the run is the very same."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill():
        monkeypatch.setattr(EventFile, "write", full)

    words = r"cannot be used \(No space left on device\), mend it: the same command goes on"
    with pytest.raises(UserError, match=words):
        train(CFG, tiny.data(), tmp_path, progress=At(5, fill))
    monkeypatch.undo()
    assert train(CFG, tiny.data(), tmp_path) == 12
    assert_same_run(tmp_path, whole)
