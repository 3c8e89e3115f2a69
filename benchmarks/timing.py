"""Medians of interleaved runs, and what the machine itself can do in the same process."""

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Runs = dict[str, Callable[[], Any]]


TURN = 0.4  # seconds of a turn, at least one call


def interleaved(runs: Runs, rounds: int) -> dict[str, float]:
    """Median seconds of a call of each run.

    They take turns, so that a busy moment meets all of them. A turn lasts TURN and begins with a
    call that is not timed: for some milliseconds the threads of the library before it still spin.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            run()
            began, calls = time.perf_counter(), 0
            while not calls or time.perf_counter() - began < TURN:
                run()
                calls += 1
            if turn:
                times[name].append((time.perf_counter() - began) / calls)
    return {name: statistics.median(found) for name, found in times.items()}


def matmul(size: int = 1536) -> tuple[Callable[[], Any], float]:
    """A float32 product of squares, the machine's rate of multiplication, and its FLOPs."""
    a, b = (jnp.asarray(np.random.default_rng(n).normal(size=(size, size)), "f4") for n in (0, 1))
    product = jax.jit(jnp.matmul)
    return lambda: product(a, b).block_until_ready(), 2.0 * size**3


def stream(megabytes: int = 256) -> tuple[Callable[[], Any], float]:
    """Reads an array that fits no cache once, by a matrix-vector product, and its bytes."""
    rows = megabytes * 2**20 // 4 // 4096
    a, x = jnp.ones((rows, 4096), jnp.float32), jnp.ones(4096, jnp.float32)
    product = jax.jit(jnp.matmul)
    return lambda: product(a, x).block_until_ready(), 4.0 * rows * 4096


def machine() -> str:
    """One line: devices, their number, and versions."""
    device = jax.devices()[0]
    return (
        f"{jax.device_count()} {device.platform} ({platform.machine()}), JAX {jax.__version__}, "
        f"Python {platform.python_version()}"
    )
