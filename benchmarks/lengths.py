"""A training step by length, attention beside an LSTM: python -m benchmarks lengths

The same width and as many layers, 2,048 tokens a batch, forward, backward and update. An LSTM takes
n steps one after another, attention one of n² products (Vaswani et al. 2017, table 1).
"""

from typing import Any

import jax
import numpy as np

from benchmarks.timing import interleaved
from benchmarks.train_step import VOCAB, config, jax_step
from jaxformer.analysis.accounts import count_parameters
from jaxformer.models import abstract_params, build

LAYERS, WIDTH, HEADS, TOKENS = 2, 128, 4, 2048
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)


def main(rounds: int = 3) -> list[dict[str, Any]]:
    rows = []
    for length in LENGTHS:
        batch = TOKENS // length
        ids = np.random.default_rng(0).integers(3, VOCAB, (batch, length + 1))
        shape = LAYERS, WIDTH, HEADS, length, batch
        lstm = {"model.architecture": "lstm", "model.position.kind": "none"}
        configs = {"transformer": config(*shape), "lstm": config(*shape, changes=lstm)}
        sizes = {n: count_parameters(abstract_params(build(c.model))) for n, c in configs.items()}
        seconds = interleaved({n: jax_step(c, ids) for n, c in configs.items()}, rounds)
        jax.clear_caches()
        rows.append(
            {
                "length": length,
                "rows": batch,
                **{f"{name} ms": round(1e3 * s, 1) for name, s in seconds.items()},
                "lstm / transformer": round(seconds["lstm"] / seconds["transformer"], 2),
                **{f"{name} parameters": f"{size:,}" for name, size in sizes.items()},
            }
        )
    return rows
