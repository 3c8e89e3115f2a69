"""BART; Lewis et al. 2020: Post-LN both sides, one embedding table, a norm after the embeddings.

Its positions start at row 2 of their tables; the rows before are left out.
"""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import ACTIVATIONS, Extra, Family, Special, theirs
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import ONE_ROW, TRANSPOSE, Row, after, linear, norm, row

SKIPPED = 2
ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
BIAS = "final_logits_bias"


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits", "is_decoder"):
        fields.only(name, False)
    fields.only("normalize_embedding", True)
    fields.equal("decoder_attention_heads", "encoder_attention_heads")
    fields.equal("decoder_ffn_dim", "encoder_ffn_dim")
    for name in ("encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers"):
        fields.get(name)  # of training; a second name
    rate = fields.number("dropout", 0.1)
    return {
        "architecture": "encoder_decoder",
        "num_layers": fields.integer("decoder_layers", 12),
        "num_encoder_layers": fields.integer("encoder_layers", 12),
        "d_model": fields.integer("d_model", 1024),
        "num_heads": fields.integer("encoder_attention_heads", 16),
        "d_ff": fields.integer("encoder_ffn_dim", 4096),
        "vocab_size": fields.integer("vocab_size", 50265),
        "max_length": fields.integer("max_position_embeddings", 1024),
        "activation": fields.choice("activation_function", ACTIVATIONS, "gelu"),
        "norm_placement": "post",
        "embedding_norm": True,
        "scale_embeddings": fields.flag("scale_embedding", False),
        "tie_embeddings": fields.flag("tie_word_embeddings", True),
        "head_bias": BIAS in names,
        "initializer": "bert",
        "dropout.embedding": rate,
        "dropout.residual": rate,
        "dropout.attention": fields.number("attention_dropout", 0.0),
        "dropout.feed_forward": fields.number("activation_dropout", 0.0),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    found = [row("model.shared.weight", "embedding/table")]
    if cfg.head_bias:
        found.append(row(BIAS, "head/bias", ONE_ROW))
    for side, layers in (("encoder", cfg.encoder_layers), ("decoder", cfg.num_layers)):
        name = f"model.{side}"
        table = f"{side}/position/learned/table"
        found.append(row(f"{name}.embed_positions.weight", table, after(SKIPPED)))
        found += norm(f"{name}.layernorm_embedding", f"{side}/embedding_norm", True)
        attentions = {"self_attn": "attention"}
        if side == "decoder":
            attentions["encoder_attn"] = "cross_attention"
        for i in range(layers):
            for their, our in attentions.items():
                both = f"{name}.layers.{i}.{their}", f"{side}/layers/{i}/{our}"
                for proj, part in ATTENTION.items():
                    found += linear(f"{both[0]}.{proj}", f"{both[1]}/{part}", True)
                found += norm(f"{both[0]}_layer_norm", f"{both[1]}_norm", True)
            both = f"{name}.layers.{i}", f"{side}/layers/{i}/feed_forward"
            found += linear(f"{both[0]}.fc1", f"{both[1]}/up", True)
            found += linear(f"{both[0]}.fc2", f"{both[1]}/down", True)
            found += norm(f"{both[0]}.final_layer_norm", f"{both[1]}_norm", True)
    if not cfg.tie_embeddings:
        found.append(row("lm_head.weight", "head/kernel", TRANSPOSE))
    return found


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    return {
        "architectures": ["BartForConditionalGeneration"],
        "is_encoder_decoder": True,
        "decoder_layers": cfg.num_layers,
        "encoder_layers": cfg.encoder_layers,
        "d_model": cfg.d_model,
        "encoder_attention_heads": cfg.num_heads,
        "decoder_attention_heads": cfg.num_heads,
        "encoder_ffn_dim": cfg.ff_width,
        "decoder_ffn_dim": cfg.ff_width,
        "vocab_size": cfg.vocab_size,
        "max_position_embeddings": cfg.max_length,
        "activation_function": theirs(ACTIVATIONS, cfg.activation),
        "scale_embedding": cfg.scale_embeddings,
        "tie_word_embeddings": cfg.tie_embeddings,
        "forced_eos_token_id": None,
        "dropout": cfg.dropout.residual,
        "attention_dropout": cfg.dropout.attention,
        "activation_dropout": cfg.dropout.feed_forward,
    }


def tied(cfg: ModelConfig) -> dict[str, str]:
    copies = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    copies += ["lm_head.weight"] if cfg.tie_embeddings else []
    return dict.fromkeys(copies, "model.shared.weight")


BART = Family("bart", read, rows, write, "model.", tied, r"$^")
