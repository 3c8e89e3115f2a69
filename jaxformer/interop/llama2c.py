"""Flat files of llama2.c, its first format: 7 int32, then float32 tensors in a fixed order.

Weights are [out, in]; rotary pairs lie side by side (layout 'interleaved'). The vocabulary's size
is negative where the head has a table of its own.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.interop.settings import model_config

HEADER = struct.Struct("<7i")
MAGIC = 0x616B3432  # of the later formats


def read_llama2c(path: Path) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """The config and the parameters by path; raises UserError where the file is not whole."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(HEADER.size)
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})", "give a file") from error
    if len(head) < HEADER.size or min(map(abs, HEADER.unpack(head))) < 1:
        raise UserError(str(path), "has no header of llama2.c", "give such a file, or a folder")
    width, hidden, layers, heads, kv_heads, vocab, length = HEADER.unpack(head)
    if width == MAGIC:
        raise UserError(str(path), "is of a later format", "export it with version 0")
    tied, vocab = vocab > 0, abs(vocab)
    cfg = _config(path, (width, hidden, layers, heads, kv_heads, vocab, length), tied)
    inner, inner_kv, half = width, kv_heads * width // heads, width // heads // 2
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocab, width),
        "attention_norm": (layers, width),
        "query": (layers, inner, width),
        "key": (layers, inner_kv, width),
        "value": (layers, inner_kv, width),
        "output": (layers, width, inner),
        "feed_forward_norm": (layers, width),
        "gate": (layers, hidden, width),
        "down": (layers, width, hidden),
        "up": (layers, hidden, width),
        "final_norm": (width,),
        "cosines": (length, half),  # follow from the header
        "sines": (length, half),
    }
    shapes |= {} if tied else {"head": (vocab, width)}
    wanted = HEADER.size + 4 * sum(math.prod(shape) for shape in shapes.values())
    if size != wanted:
        what = f"has {size} bytes, its header says {wanted}"
        raise UserError(str(path), what, "copy it once more: is it a whole file of llama2.c?")
    data, found, start = np.memmap(path, "<f4", "r", HEADER.size), {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        found[name] = data[start : start + count].reshape(shape)
        start += count
    return cfg, _leaves(found, layers)


def _leaves(found: dict[str, Any], layers: int) -> dict[str, np.ndarray]:
    leaves = {"embedding/table": found["embedding"], "final_norm/scale": found["final_norm"]}
    if "head" in found:
        leaves["head/kernel"] = found["head"].T
    for i in range(layers):
        for name in ("attention_norm", "feed_forward_norm"):
            leaves[f"layers/{i}/{name}/scale"] = found[name][i]
        for name in ("query", "key", "value", "output"):
            leaves[f"layers/{i}/attention/{name}/kernel"] = found[name][i].T
        for name in ("gate", "up", "down"):
            leaves[f"layers/{i}/feed_forward/{name}/kernel"] = found[name][i].T
    return {path: np.array(x) for path, x in leaves.items()}


def _config(path: Path, header: tuple[int, ...], tied: bool) -> ModelConfig:
    width, hidden, layers, heads, kv_heads, vocab, length = header
    try:
        return model_config(
            {
                "num_layers": layers,
                "d_model": width,
                "num_heads": heads,
                "num_kv_heads": kv_heads,
                "d_ff": hidden,
                "vocab_size": vocab,
                "max_length": length,
                "activation": "swiglu",
                "norm": "rmsnorm",
                "attention_bias": False,
                "attention_output_bias": False,
                "feed_forward_bias": False,
                "tie_embeddings": tied,
                "position.kind": "rope",
                "position.rope.layout": "interleaved",
            }
        )
    except UserError as error:
        what = f"has a header that is no model's ({error.where} {error.what})"
        raise UserError(str(path), what, "give a file of llama2.c") from error
