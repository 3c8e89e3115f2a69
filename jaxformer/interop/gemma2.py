"""Gemma-2; Gemma Team 2024: soft-caps, norms around each sublayer, windows in every other layer.

Its norms multiply by 1 + w: the weight w of the file is scale - 1. Embeddings are multiplied by
sqrt(D), and attention logits divided by sqrt(query_pre_attn_scalar), here the head's width.
"""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import Extra, Family, Special
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import PLUS_ONE, Row
from jaxformer.interop.llama import BUFFERS, make_rows, read_shape, tied, write_shape
from jaxformer.interop.rope import read_windows, write_windows

NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    "post_feedforward_layernorm": "feed_forward_post_norm",
}


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    fields.get("hidden_act")  # older files have it beside the one that is used
    shape = read_shape(fields, "hidden_activation", "gelu_pytorch_tanh")
    width, bias = fields.integer("head_dim", 256), fields.flag("attention_bias", False)
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar != width:
        mend = f"it cannot be read: jaxformer divides logits by sqrt(head_dim = {width})"
        fields.refuse("query_pre_attn_scalar", f"is {scalar:g}", mend)
    fields.only("use_bidirectional_attention", None, False)
    slides = [i % 2 == 0 for i in range(shape["num_layers"])]
    return shape | {
        "head_dim": width,
        "norm_placement": "sandwich",
        "scale_embeddings": True,
        "attention_softcap": fields.number("attn_logit_softcapping", 0.0),
        "logit_softcap": fields.number("final_logit_softcapping", 0.0),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "tie_embeddings": fields.flag("tie_word_embeddings", True),
        **read_windows(fields, slides, fields.integer("sliding_window", 4096)),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    return make_rows(cfg, NORMS, PLUS_ONE)


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    return {
        **write_shape(cfg, "hidden_activation"),
        **write_windows(cfg),
        "architectures": ["Gemma2ForCausalLM"],
        "query_pre_attn_scalar": cfg.head_width,
        "attn_logit_softcapping": cfg.attention_softcap or None,
        "final_logit_softcapping": cfg.logit_softcap or None,
    }


GEMMA2 = Family("gemma2", read, rows, write, "model.", tied, BUFFERS)
