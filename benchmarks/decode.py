"""Decoding against transformers and against the bare products: python -m benchmarks decode

GPT-2-small's shape with random weights, greedy, 64 new tokens after 64, no end token. The time of
prefill is in it on both sides. "chain" is the products of one token with all matrices, one after
another in one loop, nothing else; "share of bandwidth" has the bytes of all weights a token over
the rate at which the machine reads an array. "at 1,024" is the time of a token behind 1,000 others
over that behind 64, without prefill. bfloat16 is `jaxformer.run.cast`.
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
from jaxformer.run import Run, cast

PROMPT, NEW = 64, 64
FAR, STEPS = 1000, 16


def main(rounds: int = 5) -> list[dict[str, Any]]:
    return [measure(batch_size, rounds) for batch_size in (1, 8)]


def measure(batch_size: int, rounds: int) -> dict[str, Any]:
    """One line of the table."""
    whole, half = make_model(), make_model("bfloat16")
    draw = np.random.default_rng(0).integers
    short, long = (draw(3, 50000, (batch_size, size)) for size in (PROMPT, FAR))
    read, read_bytes = stream()
    runs: Runs = {
        "float32": lambda: run(whole, short),
        "bfloat16": lambda: run(half, short),
        "transformers": torch_run(short),
        "chain": chain(whole, batch_size),
        "read": read,
    }
    seconds = interleaved(runs, rounds)
    weights = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(nnx.state(whole)))
    bandwidth = read_bytes / seconds["read"]
    names = ("float32", "bfloat16", "transformers", "chain")
    return {
        "batch": batch_size,
        **{f"{name} ms a token": round(1e3 * seconds[name] / NEW, 1) for name in names},
        "× transformers": round(seconds["transformers"] / seconds["float32"], 2),
        "bfloat16 × float32": round(seconds["float32"] / seconds["bfloat16"], 2),
        "share of chain": f"{seconds['chain'] / seconds['float32']:.0%}",
        "share of bandwidth": f"{NEW * weights / seconds['float32'] / bandwidth:.0%}",
        "at 1,024": growth(whole, short, long) if batch_size == 1 else "",
    }


def growth(model: nnx.Module, *prompts: np.ndarray) -> str:
    """By how much a token takes longer behind the second prompt than behind the first."""
    runs: Runs = {
        f"{number} {new}": lambda p=p, new=new: run(model, p, new)
        for number, p in enumerate(prompts)
        for new in (1, 1 + STEPS)
    }
    seconds = interleaved(runs, 3)
    near, far = (seconds[f"{n} {1 + STEPS}"] - seconds[f"{n} 1"] for n in range(2))
    return f"{far / near - 1:+.0%}"


def make_model(dtype: str = "float32") -> nnx.Module:
    c = gpt2_small.get_config()
    c.data.path = "text"
    cfg = RunConfig.from_config_dict(c)
    graphdef, _ = nnx.split(build(cfg.model, "float32"))
    params = jax.jit(lambda key: init(cfg.model, key))(jax.random.key(0))
    model: Any = nnx.merge(graphdef, params)
    none: Any = None  # of texts there are none
    return cast(Run(model, none, cfg, 0, ""), dtype).model


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
