"""What a run tells about itself: metrics.jsonl, TensorBoard, throughput and MFU."""

import json
import math
import os
import re
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import RunConfig
from jaxformer.sharding import path_of
from jaxformer.training.events import EventFile
from jaxformer.training.history import WallClock, go_back

# Dense bf16 FLOP/s of one device, by what its device_kind starts with (vendors' data sheets).
PEAK_FLOPS = {
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU v5p": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
}


class MetricsWriter:
    """Appends lines to WORKDIR/metrics.jsonl and scalars to WORKDIR/tensorboard.

    Opened at `step`, it drops what an earlier process wrote of later steps, and a torn last line,
    so that a resumed run leaves the lines of one that was never interrupted. `dropped` is the last
    line that was lost in this way, {} if none was. Times never go back, whatever the clock does.
    """

    def __init__(self, workdir: str | os.PathLike[str], step: int = 0):
        workdir = Path(workdir)
        self.path = workdir / "metrics.jsonl"
        lines = go_back(self.path, step)
        self.dropped = lines.later[-1] if lines.later else {}
        self._clock = WallClock(_number(lines.last.get("time")))
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        self._events = EventFile(workdir / "tensorboard", step, self._clock.now())

    def write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Writes one line; numbers that are not finite become null."""
        now = self._clock.now()
        line = {"step": step, "split": split, **{k: _plain(v) for k, v in values.items()}}
        self._file.write(json.dumps(line | {"time": round(now, 3)}, allow_nan=False) + "\n")
        self._file.flush()
        self._events.write(step, now, {f"{split}/{name}": v for name, v in values.items()})

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._events.close()


class Meter:
    """Speed since the last `reset`: tokens, steps and the time spent waiting for data."""

    def __init__(self, flops_per_position: float, peak_flops: float):
        self._flops, self._peak = flops_per_position, peak_flops
        self.reset()

    def reset(self) -> None:
        self._start = time.perf_counter()
        self._steps, self._tokens, self._positions, self._waited = 0, 0.0, 0, 0.0

    def waited(self, seconds: float) -> None:
        self._waited += seconds

    def add(self, tokens: float, positions: int) -> None:
        """Counts a finished step: its supervised tokens, and all positions it computed."""
        self._steps += 1
        self._tokens += tokens
        self._positions += positions

    def rates(self) -> dict[str, float]:
        """`data_wait` is a share of the time, `mfu` a share of the devices' peak."""
        seconds = time.perf_counter() - self._start
        if not self._steps or seconds <= 0:
            return {}
        rates = {
            "tokens_per_second": self._tokens / seconds,
            "step_seconds": seconds / self._steps,
            "data_wait": self._waited / seconds,
        }
        if self._peak:
            rates["mfu"] = self._flops * self._positions / seconds / self._peak
        return {name: float(f"{value:.4g}") for name, value in rates.items()}


ON_SOURCE = re.compile("^encoder/|cross_attention/(key|value)/")
TIMED = ("tokens_per_second", "step_seconds", "data_wait", "mfu", "goodput", "seconds", "time")


def flops_per_position(cfg: RunConfig, abstract_params: Any) -> float:
    """Model FLOPs of forward and backward for one position of `tokens`: 6 N + 12 layers · H K · L.

    Chowdhery et al. 2022 (PaLM), appendix B, with N as in Kaplan et al. 2020 §2.1: weights that
    are multiplied, so kernels and the read-out (D · V, tied or not) but no table that is looked
    up. Attention is counted in full, not halved for causality; recomputation is not counted. Of a
    mixture only the experts of a position's top k are counted. Of an encoder-decoder, what runs on
    the S positions of the source is shared out over the L of the target. A classifier's head is
    counted as if it ran at each position, a position bias's network (FIRE) as often as it runs.
    """
    model, length = cfg.model, cfg.data.length
    sizes = {
        path_of(keys): int(np.prod(leaf.shape)) * _times(cfg, path_of(keys))
        for keys, leaf in jax.tree_util.tree_leaves_with_path(abstract_params)
        if path_of(keys).endswith("kernel")
    }
    if model.head.kind == "vocabulary":
        sizes["head/kernel"] = model.d_model * model.vocab_size
    attends = model.architecture != "lstm"
    pairs = 12.0 * model.num_heads * model.head_width * attends  # FLOPs a layer and pair
    if model.architecture != "encoder_decoder":
        return 6.0 * sum(sizes.values()) + pairs * model.num_layers * length
    target_length = cfg.data.target_length or length
    on_source = sum(size for path, size in sizes.items() if ON_SOURCE.search(path))
    on_target = 6.0 * (sum(sizes.values()) - on_source)
    on_target += pairs * model.num_layers * (target_length + length)
    encoder = 6.0 * on_source + pairs * model.encoder_layers * length
    return on_target + encoder * length / target_length


def _times(cfg: RunConfig, path: str) -> int | Fraction:
    """How often one position is multiplied by a kernel: a bias's once for each key and layer."""
    found, model = re.search(r"position/([^/]+)/", path), cfg.model
    if "/experts/" in path:
        return Fraction(model.moe.top_k, model.moe.num_experts)
    if found is None:
        return 1
    both = model.architecture == "encoder_decoder"
    on_target = both and not ON_SOURCE.search(path)
    specs = model.layer_specs(model.encoder_layers if both and not on_target else model.num_layers)
    keys = cfg.data.target_length or cfg.data.length if on_target else cfg.data.length
    return keys * sum(spec.position == found[1] for spec in specs)


def peak_flops(num_devices: int) -> float:
    """FLOP/s of the devices of a run together; 0 where the kind is not in the table.

    CPU devices, real or faked, share one machine: a float32 matrix product is timed once.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        return _measured_flops()
    for kind, flops in PEAK_FLOPS.items():
        if device.device_kind.startswith(kind):
            return flops * num_devices
    return 0.0


def _measured_flops(size: int = 768, seconds: float = 0.1) -> float:
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(lambda x: x @ x)
    multiply(x).block_until_ready()
    fastest, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        multiply(x).block_until_ready()
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * size**3 / fastest


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0.0
