"""GPT-2; Radford et al. 2019. Its linear weights are [in, out], as here; q, k, v are one tensor."""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import ACTIVATIONS, Extra, Family, Special, theirs
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import THIRDS, TRANSPOSE, Row, norm, row

PARTS = ("query", "key", "value")


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    return {
        "num_layers": fields.integer("n_layer", 12),
        "d_model": fields.integer("n_embd", 768),
        "num_heads": fields.integer("n_head", 12),
        "d_ff": fields.integer("n_inner", 4 * fields.integer("n_embd", 768)),
        "vocab_size": fields.integer("vocab_size", 50257),
        "max_length": fields.integer("n_positions", 1024),
        "activation": fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        "norm_epsilon": fields.number("layer_norm_epsilon", 1e-5),
        "tie_embeddings": fields.flag("tie_word_embeddings", True),
        "dropout.embedding": fields.number("embd_pdrop", 0.1),
        "dropout.attention": fields.number("attn_pdrop", 0.1),
        "dropout.residual": fields.number("resid_pdrop", 0.1),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    found = [
        row("transformer.wte.weight", "embedding/table"),
        row("transformer.wpe.weight", "position/learned/table"),
    ]
    for i in range(cfg.num_layers):
        name, path = f"transformer.h.{i}", f"layers/{i}"
        for kind, leaf in (("weight", "kernel"), ("bias", "bias")):
            qkv = tuple(f"{path}/attention/{part}/{leaf}" for part in PARTS)
            found += [
                Row((f"{name}.attn.c_attn.{kind}",), qkv, THIRDS),
                row(f"{name}.attn.c_proj.{kind}", f"{path}/attention/output/{leaf}"),
                row(f"{name}.mlp.c_fc.{kind}", f"{path}/feed_forward/up/{leaf}"),
                row(f"{name}.mlp.c_proj.{kind}", f"{path}/feed_forward/down/{leaf}"),
            ]
        found += norm(f"{name}.ln_1", f"{path}/attention_norm", True)
        found += norm(f"{name}.ln_2", f"{path}/feed_forward_norm", True)
    found += norm("transformer.ln_f", "final_norm", True)
    if not cfg.tie_embeddings:
        found.append(row("lm_head.weight", "head/kernel", TRANSPOSE))
    return found


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": cfg.num_layers,
        "n_embd": cfg.d_model,
        "n_head": cfg.num_heads,
        "n_inner": cfg.ff_width,
        "vocab_size": cfg.vocab_size,
        "n_positions": cfg.max_length,
        "activation_function": theirs(ACTIVATIONS, cfg.activation),
        "layer_norm_epsilon": cfg.norm_epsilon,
        "tie_word_embeddings": cfg.tie_embeddings,
        "embd_pdrop": cfg.dropout.embedding,
        "attn_pdrop": cfg.dropout.attention,
        "resid_pdrop": cfg.dropout.residual,
    }


def tied(cfg: ModelConfig) -> dict[str, str]:
    return {"lm_head.weight": "transformer.wte.weight"} if cfg.tie_embeddings else {}


GPT2 = Family("gpt2", read, rows, write, "transformer.", tied, r".*\.attn\.(masked_)?bias")
