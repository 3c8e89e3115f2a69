"""Qwen3; Yang et al. 2025: Llama with an RMSNorm of each head's queries and keys."""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import Extra, Family, Special
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import Row, norm
from jaxformer.interop.llama import BUFFERS, NORMS, make_rows, read_shape, tied, write_shape
from jaxformer.interop.rope import read_windows, write_windows


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    shape, bias = read_shape(fields), fields.flag("attention_bias", False)
    window = fields.integer("sliding_window", 4096)
    window = window if fields.flag("use_sliding_window", False) else 0
    first = fields.integer("max_window_layers", 28)
    slides = [i >= first for i in range(shape["num_layers"])]
    return shape | {
        "head_dim": fields.integer("head_dim", 128),
        "qk_norm": True,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
        **read_windows(fields, slides, window),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    found = make_rows(cfg, NORMS)
    for i in range(cfg.num_layers):
        for theirs, ours in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
            found += norm(f"model.layers.{i}.self_attn.{theirs}", f"layers/{i}/attention/{ours}")
    return found


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    fields = write_shape(cfg) | write_windows(cfg)
    fields["use_sliding_window"] = fields["sliding_window"] is not None
    return fields | {
        "architectures": ["Qwen3ForCausalLM"],
        "max_window_layers": 0 if fields["use_sliding_window"] else cfg.num_layers,
    }


QWEN3 = Family("qwen3", read, rows, write, "model.", tied, BUFFERS)
