"""BERT and RoBERTa; Devlin et al. 2019, Liu et al. 2019: Post-LN encoders with learned positions.

Rows have one kind of sentence here, so the vector of token type 0 is added to the position table
and the others are not read. RoBERTa's positions start at the padding id + 1: the rows before are
never looked up and are left out. The heads: masked words (tied), classes of a row or of a token;
a bare encoder gets the tied readout, which has no parameters.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.interop.family import ACTIVATIONS, Extra, Family, Special, theirs
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import TRANSPOSE, Arrays, Layout, Row, linear, norm, row

LINEARS = {
    "attention.self.query": "attention/query",
    "attention.self.key": "attention/key",
    "attention.self.value": "attention/value",
    "attention.output.dense": "attention/output",
    "intermediate.dense": "feed_forward/up",
    "output.dense": "feed_forward/down",
}
NORMS = {"attention.output.LayerNorm": "attention_norm", "output.LayerNorm": "feed_forward_norm"}


def read_encoder(fields: Fields, skipped: int, epsilon: float) -> dict[str, Any]:
    """What both say alike; `skipped` rows of the position table are never looked up."""
    fields.only("position_embedding_type", "absolute")
    fields.only("is_decoder", False)
    fields.only("add_cross_attention", False)
    fields.integer("type_vocab_size", 2)
    hidden = fields.number("hidden_dropout_prob", 0.1)
    return {
        "architecture": "encoder",
        "num_layers": fields.integer("num_hidden_layers", 12),
        "d_model": fields.integer("hidden_size", 768),
        "num_heads": fields.integer("num_attention_heads", 12),
        "d_ff": fields.integer("intermediate_size", 3072),
        "vocab_size": fields.integer("vocab_size", 30522),
        "max_length": fields.integer("max_position_embeddings", 512) - skipped,
        "activation": fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        "norm_placement": "post",
        "norm_epsilon": fields.number("layer_norm_eps", epsilon),
        "embedding_norm": True,
        "initializer": "bert",
        "dropout.embedding": hidden,
        "dropout.residual": hidden,
        "dropout.attention": fields.number("attention_probs_dropout_prob", 0.1),
    }


def read_head(
    fields: Fields, names: Collection[str], words: str, pooled: str, classes: str
) -> dict[str, Any]:
    """The head that the tensors are of: each is known by the name of one of them."""
    tie = fields.flag("tie_word_embeddings", True)
    if words in names:
        return {"head.transform": True, "head_bias": True, "tie_embeddings": tie}
    if classes not in names:
        return {}
    count = fields.integer("num_labels", len(fields.get("id2label", {0: "", 1: ""})))
    kind = "sequence" if pooled in names else "token"
    return {"head.kind": kind, "head.num_classes": count}


def read_bert(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    named = "cls.predictions.transform.dense.weight", "bert.pooler.dense.weight"
    head = read_head(fields, names, *named, "classifier.weight")
    return read_encoder(fields, 0, 1e-12) | head


def read_roberta(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    named = ("lm_head.dense.weight", "classifier.dense.weight")
    classes = named[1] if named[1] in names else "classifier.weight"
    head = read_head(fields, names, *named, classes)
    if head.get("head.transform"):
        fields.only("hidden_act", "gelu")  # its head has this one whatever the layers have
    return read_encoder(fields, fields.integer("pad_token_id", 1) + 1, 1e-5) | head


def positions(skipped: int, types: int) -> Layout:
    """Position and type tables <-> one table: [skipped + L, D] and [types, D] <-> [L, D]."""

    def read(places: np.ndarray, kinds: np.ndarray) -> Arrays:
        return (places[skipped:].astype(np.float32) + kinds[:1].astype(np.float32),)

    def write(table: np.ndarray) -> Arrays:
        places = np.pad(table, ((skipped, 0), (0, 0)))
        return places, np.zeros((types, table.shape[1]), table.dtype)

    return Layout(read, write)


def make_rows(
    cfg: ModelConfig, extra: Extra, base: str, skipped: int, heads: Mapping[str, list[Row]]
) -> list[Row]:
    """The table; `heads` are the rows of the head by its kind."""
    name = f"{base}.embeddings"
    both = f"{name}.position_embeddings.weight", f"{name}.token_type_embeddings.weight"
    found = [
        row(f"{name}.word_embeddings.weight", "embedding/table"),
        Row(both, ("position/learned/table",), positions(skipped, extra.token_types)),
        *norm(f"{name}.LayerNorm", "embedding_norm", True),
    ]
    for i in range(cfg.num_layers):
        for their, our in LINEARS.items():
            found += linear(f"{base}.encoder.layer.{i}.{their}", f"layers/{i}/{our}", True)
        for their, our in NORMS.items():
            found += norm(f"{base}.encoder.layer.{i}.{their}", f"layers/{i}/{our}", True)
    bare = cfg.head.kind == "vocabulary" and not cfg.head.transform
    return found if bare else found + heads[cfg.head.kind]


def rows_bert(cfg: ModelConfig, extra: Extra) -> list[Row]:
    words, classes = "cls.predictions", linear("classifier", "head/classifier", True)
    untied = [row(f"{words}.decoder.weight", "head/kernel", TRANSPOSE)]
    heads = {
        "vocabulary": [
            *linear(f"{words}.transform.dense", "head/transform", True),
            *norm(f"{words}.transform.LayerNorm", "head/norm", True),
            row(f"{words}.bias", "head/bias"),
            *(untied if not cfg.tie_embeddings else ()),
        ],
        "sequence": [*linear("bert.pooler.dense", "head/pooler", True), *classes],
        "token": classes,
    }
    return make_rows(cfg, extra, "bert", 0, heads)


def rows_roberta(cfg: ModelConfig, extra: Extra) -> list[Row]:
    untied = [row("lm_head.decoder.weight", "head/kernel", TRANSPOSE)]
    heads = {
        "vocabulary": [
            *linear("lm_head.dense", "head/transform", True),
            *norm("lm_head.layer_norm", "head/norm", True),
            row("lm_head.bias", "head/bias"),
            *(untied if not cfg.tie_embeddings else ()),
        ],
        "sequence": [
            *linear("classifier.dense", "head/pooler", True),
            *linear("classifier.out_proj", "head/classifier", True),
        ],
        "token": linear("classifier", "head/classifier", True),
    }
    return make_rows(cfg, extra, "roberta", extra.pad_id + 1, heads)


def write_encoder(cfg: ModelConfig, name: str) -> dict[str, Any]:
    kinds = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification"}
    bare = "ForMaskedLM" if cfg.head.transform else "Model"
    fields = {
        "architectures": [name + kinds.get(cfg.head.kind, bare)],
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.d_model,
        "num_attention_heads": cfg.num_heads,
        "intermediate_size": cfg.ff_width,
        "vocab_size": cfg.vocab_size,
        "max_position_embeddings": cfg.max_length,
        "type_vocab_size": 1,
        "hidden_act": theirs(ACTIVATIONS, cfg.activation),
        "layer_norm_eps": cfg.norm_epsilon,
        "tie_word_embeddings": cfg.tie_embeddings,
        "hidden_dropout_prob": cfg.dropout.residual,
        "attention_probs_dropout_prob": cfg.dropout.attention,
    }
    if cfg.head.kind in kinds:
        labels = {str(i): f"LABEL_{i}" for i in range(cfg.head.num_classes)}
        fields |= {"id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}
    return fields


def write_bert(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    return write_encoder(cfg, "Bert")


def write_roberta(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    fields = write_encoder(cfg, "Roberta")
    return fields | {"max_position_embeddings": cfg.max_length + special.pad + 1}


def tied_bert(cfg: ModelConfig) -> dict[str, str]:
    words = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    table = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
    return words | (table if cfg.tie_embeddings else {})


def tied_roberta(cfg: ModelConfig) -> dict[str, str]:
    words = {"lm_head.decoder.bias": "lm_head.bias"}
    table = {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight"}
    return words | (table if cfg.tie_embeddings else {})


UNUSED = r".*\.position_ids|(bert\.|roberta\.)?pooler\..*|cls\.seq_relationship\..*"
BERT = Family("bert", read_bert, rows_bert, write_bert, "bert.", tied_bert, UNUSED)
ROBERTA = Family(
    "roberta", read_roberta, rows_roberta, write_roberta, "roberta.", tied_roberta, UNUSED
)
