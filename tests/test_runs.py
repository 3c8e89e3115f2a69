"""Whole runs through train.py: killed and resumed, on a mesh, and one of GPT-2 small's shape."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer import load
from jaxformer.config import RunConfig
from jaxformer.models import abstract_params, build, init
from jaxformer.training.metrics import TIMED
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import new_state
from jaxformer.training.step import make_train_step

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
DROPOUT = ["--config.model.dropout.residual=0.1", "--config.model.dropout.attention=0.1"]


def start(workdir: Path, *more: str, devices: int = 1) -> subprocess.Popen:
    flags = ["--config=configs/agreement.py", f"--workdir={workdir}", *more]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, "train.py", *flags],
        cwd=ROOT,
        env=environment | {"JAX_NUM_CPU_DEVICES": str(devices)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str]:
    _, err = process.communicate(timeout=600)
    return process.returncode, err


def interrupt(process: subprocess.Popen, after: str, number: int) -> int:
    """Sends the signal once stderr has a line with `after`; returns the exit status."""
    for line in process.stderr:
        if after in line:
            time.sleep(0.2)
            process.send_signal(number)
            return finish(process)[0]
    raise AssertionError("the run ended before it could be interrupted")


def lines(workdir: Path) -> list[dict]:
    found = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in TIMED} for line in found]


def params(workdir: Path) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(load(workdir).model))]


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    flags = (*DROPOUT, "--config.train.num_steps=900", "--config.train.checkpoint_every=200")
    status, err = finish(start(tmp_path / "whole", *flags))
    assert status == 0, err
    cut = tmp_path / "cut"
    assert interrupt(start(cut, *flags), "step 450/900", signal.SIGKILL) == -signal.SIGKILL
    assert interrupt(start(cut, *flags), "step 600/900", signal.SIGTERM) == 75
    status, err = finish(start(cut, *flags))
    assert status == 0, err
    assert "resuming from step" in err
    assert lines(cut) == lines(tmp_path / "whole")
    for a, b in zip(params(cut), params(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_disk_that_is_full_and_then_is_not(tmp_path):
    """Three megabytes hold two checkpoints and not a third; afterwards the run is the very same."""
    flags = (*DROPOUT, "--config.train.num_steps=400", "--config.train.checkpoint_every=100")
    status, err = finish(start(tmp_path / "whole", *flags))
    assert status == 0, err
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(disk), "-o"]
    if subprocess.run([*mount, "size=3m"], capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        status, err = finish(start(disk / "run", *flags))
        assert status == 2, err
        assert "(No space left on device)" in err.splitlines()[-1]
        assert "Traceback" not in err
        subprocess.run([*mount, "remount,size=64m"], check=True)
        status, err = finish(start(disk / "run", *flags))
        assert status == 0, err
        assert "resuming from step" in err
        assert lines(disk / "run") == lines(tmp_path / "whole")
        for a, b in zip(params(disk / "run"), params(tmp_path / "whole"), strict=True):
            np.testing.assert_array_equal(a, b)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_losses_of_the_demo_on_eight_devices(tmp_path):
    losses = {}
    for data, fsdp in ((1, 1), (8, 1), (2, 4)):
        workdir = tmp_path / f"{data}x{fsdp}"
        mesh = (f"--config.mesh.data={data}", f"--config.mesh.fsdp={fsdp}")
        more = ("--config.train.num_steps=100", "--config.schedule.decay_steps=2500")
        more += ("--config.train.log_every=5",)
        status, err = finish(start(workdir, *mesh, *more, devices=data * fsdp))
        assert status == 0, err
        assert "rematerialization" not in err
        losses[data, fsdp] = [line["loss"] for line in lines(workdir)]
    one = np.array(losses.pop((1, 1)))
    for mesh, found in losses.items():
        print(mesh, "largest relative difference", np.abs(np.array(found) / one - 1).max())
        np.testing.assert_allclose(found, one, rtol=1e-5)


def test_gpt2_small_trains():
    values = base.get_config()
    shape = {"num_layers": 12, "d_model": 768, "num_heads": 12, "vocab_size": 50257}
    values.model.update(shape | {"max_length": 1024})
    values.schedule.update({"kind": "constant", "warmup_steps": 0, "peak_value": 1e-4})
    values.train.batch_size = 1
    cfg = RunConfig.from_config_dict(values)
    module = build(cfg.model)
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(abstract_params(module))) == 124_439_808
    tx, schedule = make_optimizer(cfg)
    state = jax.jit(lambda: new_state(init(cfg.model, jax.random.key(0)), tx))()
    step = jax.jit(
        make_train_step(nnx.split(module)[0], tx, schedule, cfg),
        donate_argnums=0,
    )
    tokens = jax.random.randint(jax.random.key(1), (1, 33), 0, 50257)
    ones = jnp.ones((1, 32), jnp.int32)
    batch = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": ones,
        "positions": jnp.arange(32)[None],
        "weights": ones.astype(jnp.float32),
    }
    losses = []
    for _ in range(3):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"] / metrics["weight"]))
    assert abs(losses[0] - math.log(50257)) < 0.3
    assert losses[2] < losses[1] < losses[0]
