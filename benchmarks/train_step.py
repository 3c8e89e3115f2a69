"""One training step against PyTorch and against the machine's own matrix product.

    python -m benchmarks train_step

Float32, the whole step: forward, backward, clipping, AdamW, the metrics that train.py logs, without
the data loader. PyTorch runs a plain GPT of the same shape (benchmarks/torch_gpt.py) eagerly and by
torch.compile; the better one counts. FLOPs are the model's (analysis/accounts.py, three times the
forward pass), the rate is that of a float32 product of two squares of 1,536 in the same rounds.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax import nnx

from benchmarks.timing import Runs, interleaved, matmul
from configs import shakespeare_char
from jaxformer.analysis.accounts import flops
from jaxformer.config import RunConfig
from jaxformer.data.blank import blank_batch
from jaxformer.models import build, init
from jaxformer.sharding import put_batch
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state, initialise
from jaxformer.training.step import jit_train_step

VOCAB = 65
# (layers, d_model, heads, length, rows): the two shapes.
SHAPES = ((4, 128, 4, 64, 12), (6, 384, 6, 256, 8))


def main(rounds: int = 5) -> list[dict[str, Any]]:
    return [measure(*shape, rounds=rounds) for shape in SHAPES]


def measure(
    layers: int, width: int, heads: int, length: int, rows: int, rounds: int = 5
) -> dict[str, Any]:
    """One line of the table."""
    ids = np.random.default_rng(0).integers(3, VOCAB, (rows, length + 1))
    cfg = config(layers, width, heads, length, rows)
    product, product_flops = matmul()
    half = config(layers, width, heads, length, rows, {"compute_dtype": "bfloat16"})
    runs: Runs = {"jaxformer": jax_step(cfg, ids), "matmul": product}
    runs["bfloat16"] = jax_step(half, ids)
    runs |= torch_steps((VOCAB, length, width, layers, heads), ids)
    seconds = interleaved(runs, rounds)
    best = min(seconds[name] for name in seconds if name.startswith("torch"))
    work = 3 * flops(cfg.model, length=length).total * rows * length
    rate = product_flops / seconds["matmul"]
    return {
        "d / layers / T / rows": f"{width} / {layers} / {length} / {rows}",
        "jaxformer tokens/s": round(rows * length / seconds["jaxformer"]),
        **{f"{n} ms": round(1e3 * s, 1) for n, s in seconds.items() if n != "matmul"},
        "× PyTorch": round(best / seconds["jaxformer"], 2),
        "GFLOP/s of matmul": round(rate / 1e9),
        "share of it": f"{work / seconds['jaxformer'] / rate:.0%}",
    }


def config(
    layers: int,
    width: int,
    heads: int,
    length: int,
    rows: int,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> RunConfig:
    """Of a decoder of this shape; `changes` are further fields by their paths."""
    c = shakespeare_char.get_config()
    c.data.path = "text"
    c.data.length = length
    c.model.update(
        num_layers=layers, d_model=width, num_heads=heads, max_length=length, vocab_size=VOCAB
    )
    c.train.update(batch_size=rows, num_steps=1000)
    c.mesh.data = 1
    c.update_from_flattened_dict(dict(changes))
    return RunConfig.from_config_dict(c).resolve(vocab_size=VOCAB, steps_per_epoch=1000)


def jax_step(cfg: RunConfig, ids: np.ndarray) -> Callable[[], Any]:
    """The step as training runs it, on one batch of ids [B, L + 1] again and again."""
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    tx, schedule = make_optimizer(cfg)
    make = lambda: init(cfg.model, jax.random.key(0))  # noqa: E731
    abstract = abstract_state(make, tx, None)
    state = initialise(make, tx, abstract)
    step = jit_train_step(graphdef, tx, schedule, cfg, abstract, None)
    batch: dict[str, Any] = {name: np.ones_like(x) for name, x in blank_batch(cfg).items()}
    words = {"tokens": ids[:, :-1], "targets": ids[:, 1:]}
    batch |= {name: x.astype(batch[name].dtype) for name, x in words.items()}
    placed = put_batch(None, batch)

    def run() -> None:
        nonlocal state
        state, metrics = step(state, placed)
        jax.block_until_ready((state.params, metrics))

    return run


def torch_steps(shape: tuple[int, int, int, int, int], ids: np.ndarray) -> Runs:
    import torch

    from benchmarks.torch_gpt import Gpt, make_step

    inputs, targets = torch.tensor(ids[:, :-1]), torch.tensor(ids[:, 1:])
    found: Runs = {}
    for name in ("torch eager", "torch compile"):
        torch.manual_seed(0)
        model = Gpt(*shape)
        forward = torch.compile(model) if name == "torch compile" else model
        found[name] = make_step(model, forward, inputs, targets)
    return found
