"""Decoding against transformers and against the bare products: python -m benchmarks decode

GPT-2-small's shape with random weights, greedy, 64 new tokens after 64, float32, no end token. The
time of prefill is in it on both sides. "chain" is the products of one token with all matrices, one
after another in one loop, nothing else: what memory bandwidth allows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.timing import Runs, interleaved, stream
from configs.presets import gpt2_small
from jaxformer.config import RunConfig
from jaxformer.generation import Greedy, generate
from jaxformer.models import build, init

PROMPT, NEW = 64, 64


def main(rounds: int = 5) -> list[dict[str, Any]]:
    model = make_model()
    rows = []
    for batch_size in (1, 8):
        prompts = np.random.default_rng(0).integers(3, 50000, (batch_size, PROMPT))
        read, read_bytes = stream()
        runs: Runs = {
            "jaxformer": lambda p=prompts: run(model, p),
            "transformers": torch_run(prompts),
            "chain": chain(model, batch_size),
            "read": read,
        }
        seconds = interleaved(runs, rounds)
        weights = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(nnx.state(model)))
        bandwidth = read_bytes / seconds["read"]
        rows.append(
            {
                "batch": batch_size,
                **{f"{n} ms a token": round(1e3 * seconds[n] / NEW, 1) for n in list(runs)[:3]},
                "× transformers": round(seconds["transformers"] / seconds["jaxformer"], 2),
                "share of chain": f"{seconds['chain'] / seconds['jaxformer']:.0%}",
                "bandwidth GB/s": round(bandwidth / 1e9, 1),
                "share of it": f"{NEW * weights / seconds['jaxformer'] / bandwidth:.0%}",
            }
        )
    return rows


def make_model(compute_dtype: str = "float32") -> nnx.Module:
    c = gpt2_small.get_config()
    c.data.path = "text"
    cfg = RunConfig.from_config_dict(c)
    graphdef, _ = nnx.split(build(cfg.model, compute_dtype))
    params = jax.jit(lambda key: init(cfg.model, key))(jax.random.key(0))
    return nnx.merge(graphdef, params)


def run(model: nnx.Module, prompts: np.ndarray, new: int = NEW) -> Any:
    lengths = np.full(len(prompts), prompts.shape[1])
    key = jax.random.key(0)
    how = {"max_new_tokens": new, "sampler": Greedy(), "key": key, "eos_id": -1}
    return generate(model, prompts, lengths, **how)


def torch_run(prompts: np.ndarray) -> Callable[[], Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    ids = torch.tensor(prompts)
    how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

    def run() -> None:
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **how)

    return run


def chain(model: nnx.Module, batch_size: int) -> Callable[[], Any]:
    """NEW times all products of a token, each fed by the one before it."""
    params = nnx.to_pure_dict(nnx.state(model))

    def token(x: jax.Array, params: Any) -> jax.Array:
        for layer in params["layers"].values():
            a, f = layer["attention"], layer["feed_forward"]
            x = sum(x @ a[name]["kernel"] for name in ("query", "key", "value"))
            x = x @ a["output"]["kernel"] @ f["up"]["kernel"] @ f["down"]["kernel"]
        logits = x @ params["embedding"]["table"].T
        return x + logits.max(-1, keepdims=True)

    @jax.jit
    def run(x: jax.Array, params: Any) -> jax.Array:
        return jax.lax.fori_loop(0, NEW, lambda _, x: 1e-3 * token(x, params), x)

    x = jnp.ones((batch_size, 768))
    return lambda: run(x, params).block_until_ready()
