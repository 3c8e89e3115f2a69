"""Llama 1 to 3 and Mistral; Touvron et al. 2023, Jiang et al. 2023. Heads are halves (rotate_half).

Qwen3 and Gemma-2 are made of the same parts: see `qwen3.py`, `gemma2.py`.
"""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import GATED_ACTIVATIONS, Extra, Family, Special, theirs
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import KEEP, TRANSPOSE, Layout, Row, linear, norm, row
from jaxformer.interop.rope import read_rope, windows, write_rope

NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}


def read_shape(
    fields: Fields, activation: str = "hidden_act", default: str = "silu"
) -> dict[str, Any]:
    """What Llama, Mistral, Qwen3 and Gemma-2 say alike; `activation` is the name of a field."""
    heads = fields.integer("num_attention_heads")
    return {
        **read_rope(fields),
        "num_layers": fields.integer("num_hidden_layers"),
        "d_model": fields.integer("hidden_size"),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "d_ff": fields.integer("intermediate_size"),
        "vocab_size": fields.integer("vocab_size"),
        "max_length": fields.integer("max_position_embeddings", 2048),
        "activation": fields.choice(activation, GATED_ACTIVATIONS, default),
        "norm": "rmsnorm",
        "norm_epsilon": fields.number("rms_norm_eps", 1e-6),
        "feed_forward_bias": False,
        "dropout.attention": fields.number("attention_dropout", 0.0),
    }


def write_shape(cfg: ModelConfig, activation: str = "hidden_act") -> dict[str, Any]:
    return {
        **write_rope(cfg),
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.d_model,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        "intermediate_size": cfg.ff_width,
        "vocab_size": cfg.vocab_size,
        "max_position_embeddings": cfg.max_length,
        activation: theirs(GATED_ACTIVATIONS, cfg.activation),
        "rms_norm_eps": cfg.norm_epsilon,
        "attention_bias": cfg.attention_bias,
        "tie_word_embeddings": cfg.tie_embeddings,
        "attention_dropout": cfg.dropout.attention,
    }


def head_dim(fields: Fields) -> int:
    """As given, or a share of the width."""
    heads = fields.integer("num_attention_heads")
    if heads < 1:
        fields.refuse("num_attention_heads", f"is {heads}", "it takes 1 or more")
    share = fields.integer("hidden_size") // heads
    return fields.integer("head_dim", share)


def make_rows(cfg: ModelConfig, norms: dict[str, str], scale: Layout = KEEP) -> list[Row]:
    """The table; `norms` are the names of a layer's norms, `scale` how their weights are stored."""
    found = [row("model.embed_tokens.weight", "embedding/table")]
    for i in range(cfg.num_layers):
        name, path = f"model.layers.{i}", f"layers/{i}"
        attention = f"{name}.self_attn", f"{path}/attention"
        for their, our in PROJECTIONS.items():
            found += linear(f"{attention[0]}.{their}", f"{attention[1]}/{our}", cfg.attention_bias)
        out = f"{attention[0]}.o_proj", f"{attention[1]}/output"
        found += linear(*out, cfg.attention_output_bias)
        for part in ("gate", "up", "down"):
            names = f"{name}.mlp.{part}_proj", f"{path}/feed_forward/{part}"
            found += linear(*names, cfg.feed_forward_bias)
        for their, our in norms.items():
            found += norm(f"{name}.{their}", f"{path}/{our}", scale=scale)
    found += norm("model.norm", "final_norm", scale=scale)
    if not cfg.tie_embeddings:
        found.append(row("lm_head.weight", "head/kernel", TRANSPOSE))
    return found


def read_llama(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    bias = fields.flag("attention_bias", False)
    return read_shape(fields) | {
        "head_dim": head_dim(fields),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "feed_forward_bias": fields.flag("mlp_bias", False),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
    }


def read_mistral(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    shape = read_shape(fields)
    # Published without a window means none; the class's own default is 4096, which all files write.
    window = fields.integer("sliding_window", 0)
    return shape | {
        "head_dim": head_dim(fields),
        "attention_bias": False,
        "attention_output_bias": False,
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
        **windows([True] * shape["num_layers"], window),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    return make_rows(cfg, NORMS)


def write_llama(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    named = {"architectures": ["LlamaForCausalLM"], "mlp_bias": cfg.feed_forward_bias}
    return write_shape(cfg) | named


def write_mistral(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    fields = write_shape(cfg) | {"architectures": ["MistralForCausalLM"]}
    del fields["attention_bias"]
    return fields | {"sliding_window": cfg.window or None}


def tied(cfg: ModelConfig) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if cfg.tie_embeddings else {}


BUFFERS = r".*rotary_emb\.inv_freq"
LLAMA = Family("llama", read_llama, rows, write_llama, "model.", tied, BUFFERS)
MISTRAL = Family("mistral", read_mistral, rows, write_mistral, "model.", tied, BUFFERS)
