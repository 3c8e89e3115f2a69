import json
import math
import time

import jax
import jax.numpy as jnp
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxformer.models import init
from jaxformer.training.metrics import Meter, MetricsWriter, flops_per_position, peak_flops
from tests.training import tiny


def write(workdir, step, *lines):
    writer = MetricsWriter(workdir, step)
    for line in lines:
        writer.write(*line)
    writer.close()


def read(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_line_has_step_split_values_and_time(tmp_path):
    write(tmp_path, 0, (3, "train", {"loss": 1.5, "tokens": 7, "grad_norm": math.inf}))
    (line,) = read(tmp_path)
    assert list(line) == ["step", "split", "loss", "tokens", "grad_norm", "time"]
    assert line["loss"] == 1.5
    assert line["grad_norm"] is None
    assert abs(line["time"] - time.time()) < 60


def test_lines_after_the_restored_step_and_a_torn_end_are_dropped(tmp_path):
    write(tmp_path, 0, *[(step, "train", {"loss": float(step)}) for step in (1, 2, 3, 4)])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "split": "ev')
    write(tmp_path, 2, (3, "train", {"loss": 30.0}))
    assert [(line["step"], line["loss"]) for line in read(tmp_path)] == [(1, 1), (2, 2), (3, 30)]
    assert not (tmp_path / "metrics.jsonl.tmp").exists()


def test_lines_that_cannot_be_read_are_kept_beside(tmp_path, capfd):
    write(tmp_path, 0, *[(step, "train", {"loss": float(step)}) for step in (1, 2, 3)])
    path = tmp_path / "metrics.jsonl"
    raw = path.read_bytes().replace(b'{"step": 2', b'{"st\xe5p": 2')
    path.write_bytes(raw)
    write(tmp_path, 3, (4, "train", {"loss": 4.0}))
    assert [line["step"] for line in read(tmp_path)] == [1, 3, 4]
    assert (tmp_path / "metrics.jsonl.unreadable").read_bytes() == raw
    words = "1 lines cannot be read and are left out, metrics.jsonl.unreadable has all"
    assert words in capfd.readouterr().err


def test_times_never_go_back(tmp_path, monkeypatch):
    """Not when the clock is set back while a run goes on, nor between its processes."""
    write(tmp_path, 0, (1, "train", {}))
    now = time.time()
    for step, day in ((2, -1), (3, 1), (4, -2)):
        monkeypatch.setattr(time, "time", lambda day=day: now + 86_400 * day)
        write(tmp_path, step - 1, (step, "train", {}))
    times = [line["time"] for line in read(tmp_path)]
    assert times == sorted(times)
    assert 86_000 < times[2] - times[0] < 87_000


def test_tensorboard_shows_the_resumed_run(tmp_path, caplog):
    write(tmp_path, 0, *[(step, "train", {"loss": float(step)}) for step in (1, 2, 3, 4)])
    write(tmp_path, 2, (3, "train", {"loss": 30.0}))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert scalars == [(1, 1.0), (2, 2.0), (3, 30.0)]


def abstract(cfg):
    return jax.eval_shape(lambda: init(cfg.model, jax.random.key(0)))


def test_flops_of_a_position_by_hand():
    """One layer, D = 8, H K = 8, F = 32, V = 11, L = 8: 6 N + 12 · layers · H K · L."""
    cfg = tiny.config()
    weights = 4 * 8 * 8 + 2 * 8 * 32 + 11 * 8
    assert flops_per_position(cfg, abstract(cfg)) == 6 * weights + 12 * 1 * 8 * 8
    untied = tiny.config(model__tie_embeddings=False, model__scan_layers=True)
    assert flops_per_position(untied, abstract(untied)) == 6 * weights + 12 * 1 * 8 * 8


def test_flops_of_an_encoder_decoder_by_hand():
    """Two sources of L = 4 tokens a target token: S = 8."""
    cfg = tiny.config(**tiny.SEQ2SEQ, data__target_length=4)
    layer, cross, head = 4 * 8 * 8 + 2 * 8 * 32, 4 * 8 * 8, 11 * 8
    on_target = 6 * (layer + cross // 2 + head) + 12 * 8 * (4 + 8)
    on_source = 6 * (layer + cross // 2) + 12 * 8 * 8
    assert flops_per_position(cfg, abstract(cfg)) == on_target + 2 * on_source


def test_meter_divides_what_it_counted(monkeypatch):
    clock = iter([0.0, 4.0, 4.0, 5.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    meter = Meter(flops_per_position=10.0, peak_flops=100.0)
    meter.waited(1.0)
    meter.add(tokens=6.0, positions=8)
    meter.add(tokens=2.0, positions=8)
    assert meter.rates() == {
        "tokens_per_second": 2.0,
        "step_seconds": 2.0,
        "data_wait": 0.25,
        "mfu": 0.4,
    }
    meter.reset()
    assert meter.rates() == {}


def test_peak_is_looked_up_by_kind_and_measured_on_cpu(monkeypatch):
    began = time.perf_counter()
    assert 1e8 < peak_flops(8) < 1e14
    assert time.perf_counter() - began < 5

    class Device:
        platform, device_kind = "gpu", "NVIDIA H100 80GB HBM3"

    monkeypatch.setattr(jax, "devices", lambda: [Device()] * 4)
    assert peak_flops(2) == 2 * 989e12  # the run's, not all there are
    Device.device_kind = "NVIDIA GeForce"
    assert peak_flops(2) == 0


@pytest.mark.parametrize("value", [jnp.float32(1)])
def test_arrays_are_refused(tmp_path, value):
    """Values come as Python numbers: an array here would make the loop wait for a device."""
    writer = MetricsWriter(tmp_path)
    with pytest.raises(TypeError):
        writer.write(1, "train", {"loss": value})
    writer.close()
