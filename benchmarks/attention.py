"""Attention by length, forward and backward: python -m benchmarks attention, or
python -m benchmarks.attention [LENGTH …]

The kernels that run anywhere, and PyTorch's scaled_dot_product_attention, causal, float32, 6 heads
of 64; 8 rows, fewer beyond 8,192 tokens. They take turns in one process; the medians of their times
are shown. Temporary memory is what XLA plans.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxformer.evaluation.report import markdown
from jaxformer.nn import kernels, masks
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.masks import Visibility

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
HEADS, WIDTH, ROWS, TOKENS, ROUNDS = 6, 64, 8, 8192, 7

KERNELS = ("reference", "chunked", "blockwise")


def main(lengths: tuple[int, ...] = LENGTHS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    return [measure(length, rounds) for length in lengths]


def measure(length: int, rounds: int) -> dict[str, Any]:
    """One line of the table."""
    rows = min(ROWS, max(1, TOKENS // length))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(rows, length, HEADS, WIDTH)).astype(np.float32) for _ in range(4)]
    runs: dict[str, Callable[[], Any]] = {}
    memory = {}
    for name in KERNELS:
        compiled, placed = _compile(name, arrays)
        memory[name] = compiled.memory_analysis().temp_size_in_bytes
        runs[name] = lambda f=compiled, x=placed: jax.block_until_ready(f(*x))
    runs["torch"] = _torch(arrays)
    for run in runs.values():
        run()
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    return {
        "length": length,
        "rows": rows,
        **{f"{name} ms": round(1e3 * spent, 2) for name, spent in seconds.items()},
        **{f"torch / {n}": round(seconds["torch"] / seconds[n], 2) for n in KERNELS[1:]},
        **{f"{name} MiB": round(size / 2**20, 1) for name, size in memory.items()},
    }


def _compile(kernel: str, arrays: list[np.ndarray]) -> tuple[Any, Any]:
    """(q, k, v, gradient of the outputs) -> outputs and gradients, compiled; the arrays placed."""
    ids_BL = jnp.ones(arrays[0].shape[:2], jnp.int32)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, d: jax.Array, ids_BL: jax.Array) -> Any:
        order_BL = masks.order(ids_BL)
        view = Visibility(order_BL, order_BL, ids_BL, ids_BL, True, aligned=True)
        out, back = jax.vjp(
            lambda *x: kernels.attend(kernel, *x, Rule(view, WIDTH**-0.5))[0], q, k, v
        )
        return out, back(d)

    placed = jax.device_put((*arrays, ids_BL))
    return jax.jit(run).lower(*placed).compile(), placed


def _torch(arrays: list[np.ndarray]) -> Callable[[], None]:
    q, k, v, d = (torch.tensor(x).transpose(1, 2).contiguous() for x in arrays)
    for x in (q, k, v):
        x.requires_grad_()

    def run() -> None:
        for x in (q, k, v):
            x.grad = None
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.backward(d)

    return run


if __name__ == "__main__":
    print(f"JAX on {jax.devices()[0].device_kind}, PyTorch {torch.__version__}")
    print(markdown(main(tuple(map(int, sys.argv[1:])) or LENGTHS)))
