"""One GPU in ten minutes: python -m benchmarks.gpu [--tiny]

Three tables. The train step of GPT-2 small and medium in bfloat16, rows of 1,024 tokens, by
attention kernel, as a share of the rate of a bfloat16 matrix product measured in the same run.
Tokens that GPT-2 small generates a second, 128 after prompts of 64, by rows. Eight seeds in one
program against one after another (benchmarks/seeds.py). Weights and tokens are random. `--tiny`
tries the script on any machine, with a small model; what it then prints says nothing about speed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.train_step import jax_step
from configs.presets import gpt2_medium, gpt2_small
from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.evaluation.report import markdown
from jaxformer.generation import Greedy, generate
from jaxformer.models import abstract_params, build, init
from jaxformer.nn.kernels.select import check_kernel
from jaxformer.training.metrics import flops_per_position

PRESETS = {"GPT-2 small": (gpt2_small, 16), "GPT-2 medium": (gpt2_medium, 8)}  # with rows a step
KERNELS = ("reference", "blockwise", "cudnn")
WARM, ROUNDS = 2, 10
PROMPT, NEW = 64, 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="try the script with a small model")
    tiny = parser.parse_args().tiny
    device = jax.devices()[0]
    if device.platform != "gpu" and not tiny:
        print("error: no GPU here, give --tiny to try the script without", file=sys.stderr)
        return 2
    size = 512 if tiny else 8192
    x = jnp.ones((size, size), jnp.bfloat16)
    multiply = jax.jit(lambda x: x @ x)
    rate = 2 * size**3 / median(lambda: multiply(x))
    print(f"{device.device_kind}, jax {jax.__version__}: {rate / 1e12:.1f} TFLOP/s in bfloat16")
    print(f"\nTraining, {WARM} steps before, median of {ROUNDS}\n")
    print(markdown([train(name, kernel, rate, tiny) for name in PRESETS for kernel in KERNELS]))
    print(f"\nGPT-2 small, {NEW} tokens after {PROMPT}, bfloat16\n")
    print(markdown(decode(tiny)))
    command = [sys.executable, "-m", "benchmarks.seeds"]
    print(flush=True)
    return subprocess.run([*command, "--steps=50"] if tiny else command, check=False).returncode


def median(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of a call, the median after some that do not count."""
    times = []
    for _ in range(WARM + rounds):
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARM:])


def config(preset: Any, rows: int, kernel: str, tiny: bool) -> RunConfig:
    """The preset without data, and without dropout, which of attention only the reference has."""
    c: Any = preset.get_config()
    c.data.path, c.compute_dtype, c.train.batch_size = "-", "bfloat16", rows
    c.mesh.data = 1
    m = c.model
    m.attention_kernel, m.scan_layers = kernel, True
    m.dropout.embedding = m.dropout.attention = m.dropout.residual = 0.0
    if tiny:
        m.num_layers, m.d_model, m.num_heads, m.d_ff, m.vocab_size = 2, 64, 4, 256, 512
        m.max_length = c.data.length = 256
        c.data.tokenizer.vocab_size = m.vocab_size
    cfg = RunConfig.from_config_dict(c)
    return cfg.resolve(vocab_size=cfg.model.vocab_size, steps_per_epoch=1000)


def train(name: str, kernel: str, rate: float, tiny: bool) -> dict[str, Any]:
    """One line of the first table."""
    preset, rows = PRESETS[name]
    line: dict[str, Any] = {"model": name, "kernel": kernel, "rows": rows}
    try:
        check_kernel(kernel)
    except UserError as error:
        return line | {"ms a step": error.what, "tokens/s": "", "share of the matmul rate": ""}
    cfg = config(preset, rows, kernel, tiny)
    shape = rows, cfg.data.length + 1
    ids = np.random.default_rng(0).integers(3, cfg.model.vocab_size, shape)
    seconds, tokens = median(jax_step(cfg, ids)), rows * cfg.data.length
    flops = flops_per_position(cfg, abstract_params(build(cfg.model)))
    share = flops * tokens / seconds / rate
    return line | {
        "ms a step": f"{1000 * seconds:.1f}",
        "tokens/s": f"{tokens / seconds:,.0f}",
        "share of the matmul rate": f"{100 * share:.1f} %",
    }


def decode(tiny: bool) -> list[dict[str, Any]]:
    """Lines of the second table."""
    cfg = config(gpt2_small, 1, "auto", tiny)
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    model = nnx.merge(graphdef, init(cfg.model, jax.random.key(0)))
    lines = []
    for rows in (1, 8, 64):
        prompts = np.random.default_rng(0).integers(3, cfg.model.vocab_size, (rows, PROMPT))
        how: dict[str, Any] = {
            "lengths_B": np.full(rows, PROMPT),
            "max_new_tokens": NEW,
            "sampler": Greedy(),
            "key": jax.random.key(0),
            "eos_id": -1,
        }
        run = lambda p=prompts, h=how: generate(model, p, **h).tokens  # noqa: E731
        seconds = median(run, 5)
        rate, each = rows * NEW / seconds, 1000 * seconds / NEW
        lines.append({"rows": rows, "tokens/s": f"{rate:,.0f}", "ms a token": f"{each:.2f}"})
    return lines


if __name__ == "__main__":
    sys.exit(main())
