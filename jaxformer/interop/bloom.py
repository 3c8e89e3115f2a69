"""BLOOM; Scao et al. 2022: ALiBi, a norm after the embeddings, query, key and value by head."""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import Extra, Family, Special
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import TRANSPOSE, Row, by_head, linear, norm, row

LENGTH = 2048  # of training; ALiBi has no end, and files seldom say


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    fields.only("apply_residual_connection_post_layernorm", False)
    width = fields.get("hidden_size", fields.get("n_embed", fields.get("n_embd")))
    if not isinstance(width, int):
        fields.refuse("hidden_size", f"is {width!r}", "it takes a whole number")
    return {
        "num_layers": fields.integer("n_layer", fields.get("num_hidden_layers")),
        "d_model": width,
        "num_heads": fields.integer("n_head", fields.get("num_attention_heads")),
        "d_ff": 4 * width,
        "vocab_size": fields.integer("vocab_size"),
        "max_length": fields.integer("seq_length", LENGTH),
        "norm_epsilon": fields.number("layer_norm_epsilon", 1e-5),
        "embedding_norm": True,
        "tie_embeddings": fields.flag("tie_word_embeddings", True),
        "position.kind": "alibi",
        "dropout.residual": fields.number("hidden_dropout", 0.0),
        "dropout.attention": fields.number("attention_dropout", 0.0),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    base, fused = "transformer", by_head(cfg.num_heads)
    found = [row(f"{base}.word_embeddings.weight", "embedding/table")]
    found += norm(f"{base}.word_embeddings_layernorm", "embedding_norm", True)
    for i in range(cfg.num_layers):
        name, path = f"{base}.h.{i}", f"layers/{i}"
        for kind, leaf in (("weight", "kernel"), ("bias", "bias")):
            paths = tuple(f"{path}/attention/{part}/{leaf}" for part in ("query", "key", "value"))
            found.append(Row((f"{name}.self_attention.query_key_value.{kind}",), paths, fused))
        found += linear(f"{name}.self_attention.dense", f"{path}/attention/output", True)
        found += linear(f"{name}.mlp.dense_h_to_4h", f"{path}/feed_forward/up", True)
        found += linear(f"{name}.mlp.dense_4h_to_h", f"{path}/feed_forward/down", True)
        found += norm(f"{name}.input_layernorm", f"{path}/attention_norm", True)
        found += norm(f"{name}.post_attention_layernorm", f"{path}/feed_forward_norm", True)
    found += norm(f"{base}.ln_f", "final_norm", True)
    if not cfg.tie_embeddings:
        found.append(row("lm_head.weight", "head/kernel", TRANSPOSE))
    return found


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    return {
        "architectures": ["BloomForCausalLM"],
        "n_layer": cfg.num_layers,
        "hidden_size": cfg.d_model,
        "n_head": cfg.num_heads,
        "vocab_size": cfg.vocab_size,
        "seq_length": cfg.max_length,
        "layer_norm_epsilon": cfg.norm_epsilon,
        "tie_word_embeddings": cfg.tie_embeddings,
        "hidden_dropout": cfg.dropout.residual,
        "attention_dropout": cfg.dropout.attention,
    }


def tied(cfg: ModelConfig) -> dict[str, str]:
    copy = {"lm_head.weight": "transformer.word_embeddings.weight"}
    return copy if cfg.tie_embeddings else {}


BLOOM = Family("bloom", read, rows, write, "transformer.", tied, r"$^")
