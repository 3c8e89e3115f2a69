"""T5 and T5 v1.1; Raffel et al. 2020, Shazeer 2020. The biases of layer 0 serve all layers.

v1.1 has a gate (wi_0 is activated, wi_1 multiplies it) and a head of its own, whose input is not
divided by sqrt(D).
"""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import Extra, Family, Special
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import TRANSPOSE, Row, linear, norm, row

FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "silu",
    "gated-gelu": "geglu",
    "gated-gelu_new": "geglu",
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
}
ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}
BUCKETS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    for name in ("dense_act_fn", "is_gated_act"):
        fields.get(name)  # follow from feed_forward_proj
    fields.only("is_decoder", False)
    layers, rate = fields.integer("num_layers", 6), fields.number("dropout_rate", 0.1)
    tie = fields.flag("tie_word_embeddings", True)
    scaled = fields.flag("scale_decoder_outputs", tie)
    # Newer versions write tie_word_embeddings = true whatever it is; what else they write tells.
    own_head = not tie or (not scaled and "lm_head.weight" in names)
    return {
        "architecture": "encoder_decoder",
        "num_layers": fields.integer("num_decoder_layers", layers),
        "num_encoder_layers": layers,
        "d_model": fields.integer("d_model", 512),
        "num_heads": fields.integer("num_heads", 8),
        "head_dim": fields.integer("d_kv", 64),
        "d_ff": fields.integer("d_ff", 2048),
        "vocab_size": fields.integer("vocab_size", 32128),
        "max_length": fields.integer("n_positions", 512),
        "activation": fields.choice("feed_forward_proj", FEED_FORWARDS, "relu"),
        "norm": "rmsnorm",
        "norm_epsilon": fields.number("layer_norm_epsilon", 1e-6),
        "attention_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
        "scale_attention": False,
        "tie_embeddings": not own_head,
        "scale_logits": scaled,
        "initializer": "t5",
        "position.kind": "t5",
        "position.t5.num_buckets": fields.integer("relative_attention_num_buckets", 32),
        "position.t5.max_distance": fields.integer("relative_attention_max_distance", 128),
        "dropout.embedding": rate,
        "dropout.attention": rate,
        "dropout.feed_forward": rate,
        "dropout.residual": rate,
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    found = [row("shared.weight", "embedding/table")]
    gated = cfg.activation in ("geglu", "swiglu", "reglu")
    ups = {"wi_0": "gate", "wi_1": "up"} if gated else {"wi": "up"}
    for side, layers in (("encoder", cfg.encoder_layers), ("decoder", cfg.num_layers)):
        attentions = {"SelfAttention": "attention"}
        if side == "decoder":
            attentions["EncDecAttention"] = "cross_attention"
        for i in range(layers):
            path = f"{side}/layers/{i}"
            for at, (their, our) in enumerate(attentions.items()):
                name = f"{side}.block.{i}.layer.{at}"
                for letter, part in ATTENTION.items():
                    found += linear(f"{name}.{their}.{letter}", f"{path}/{our}/{part}", False)
                found += norm(f"{name}.layer_norm", f"{path}/{our}_norm")
            name = f"{side}.block.{i}.layer.{len(attentions)}"
            for their, our in (ups | {"wo": "down"}).items():
                dense = f"{name}.DenseReluDense.{their}"
                found += linear(dense, f"{path}/feed_forward/{our}", False)
            found += norm(f"{name}.layer_norm", f"{path}/feed_forward_norm")
        found.append(row(f"{side}.{BUCKETS}", f"{side}/position/t5/buckets"))
        found += norm(f"{side}.final_layer_norm", f"{side}/final_norm")
    if not cfg.tie_embeddings:
        found.append(row("lm_head.weight", "head/kernel", TRANSPOSE))
    return found


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    proj = next((k for k, ours in FEED_FORWARDS.items() if ours == cfg.activation), "")
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "num_layers": cfg.encoder_layers,
        "num_decoder_layers": cfg.num_layers,
        "d_model": cfg.d_model,
        "num_heads": cfg.num_heads,
        "d_kv": cfg.head_width,
        "d_ff": cfg.ff_width,
        "vocab_size": cfg.vocab_size,
        "n_positions": cfg.max_length,
        "feed_forward_proj": proj or cfg.activation,
        "layer_norm_epsilon": cfg.norm_epsilon,
        "tie_word_embeddings": cfg.tie_embeddings,
        "relative_attention_num_buckets": cfg.position.t5.num_buckets,
        "relative_attention_max_distance": cfg.position.t5.max_distance,
        "dropout_rate": cfg.dropout.residual,
    }


def tied(cfg: ModelConfig) -> dict[str, str]:
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    copies += ["lm_head.weight"] if cfg.tie_embeddings else []
    return dict.fromkeys(copies, "shared.weight")


# T5's first checkpoints have a bias of cross-attention, which nothing ever read.
UNUSED = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
T5 = Family("t5", read, rows, write, "", tied, UNUSED)
