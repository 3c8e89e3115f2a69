"""Configs for models that were not made here: configs/base.py with what a folder says."""

import functools
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxformer.config import ModelConfig, RunConfig
from jaxformer.errors import UserError

BASE = Path(__file__).parents[2] / "configs" / "base.py"
OBJECTIVES = {  # by architecture, then by head
    "decoder": "causal_lm",
    "encoder_decoder": "seq2seq",
    "vocabulary": "masked_lm",
    "sequence": "sequence_classification",
    "token": "token_classification",
}
# What changes nothing of a trained model's function.
OF_TRAINING = (
    *("initializer", "scan_layers", "remat", "dropout"),
    *("attention_kernel", "logit_chunk"),
)
OF_ROUTING = tuple(
    f"moe.{name}"
    for name in ("capacity_factor", "balance_weight", "balance_over", "z_weight", "jitter")
)  # the same
MAX_ROW = 1024  # tokens of context, where the model has more


def base_config() -> ConfigDict:
    """configs/base.py, which holds the default of every field."""
    if not BASE.is_file():
        raise UserError(str(BASE), "is missing", "run from a checkout of the repository")
    return runpy.run_path(str(BASE))["get_config"]()


def model_config(changes: Mapping[str, Any]) -> ModelConfig:
    """The base model with fields changed by path; raises UserError where they do not fit."""
    model: Any = base_config().model
    for path, value in changes.items():
        *parents, name = path.split(".")
        section: Any = functools.reduce(lambda s, parent: s[parent], parents, model)
        section[name] = value
    return ModelConfig.from_config_dict(model)


def run_config(model: ModelConfig, *, add_bos: bool, add_eos: bool) -> RunConfig:
    """A run with this model that was never trained, and so has no data ('-')."""
    c: Any = base_config()
    c.model = ConfigDict(model.to_dict())
    words = model.head.kind if model.architecture == "encoder" else model.architecture
    c.objective.kind = OBJECTIVES[words]
    c.data.add_bos, c.data.add_eos = add_bos, add_eos
    c.data.tokenizer.kind, c.data.tokenizer.path = "file", "tokenizer.json"
    is_text = c.objective.kind in ("causal_lm", "masked_lm")
    c.data.source, c.data.path, c.data.pack = "text" if is_text else "jsonl", "-", is_text
    c.data.length = min(model.max_length, MAX_ROW)
    return RunConfig.from_config_dict(c)


def function_of(cfg: ModelConfig) -> dict[str, Any]:
    """The fields that decide what a trained model computes, by path, each in its plainest form."""
    values = flat(cfg.to_dict())
    kinds = {"sinusoidal", "rope", "xpos", "hard_alibi", "t5", "fire", "sandwich", "shaw", "cope"}
    used = {*cfg.position_kinds, *(["rope"] if "xpos" in cfg.position_kinds else [])}
    for kind in kinds - used:
        values = {k: v for k, v in values.items() if not k.startswith(f"position.{kind}.")}
    scaling = "position.rope.scaling."
    chosen = (f"{scaling}kind", f"{scaling}factor", f"{scaling}{cfg.position.rope.scaling.kind}.")
    for name in [name for name in values if name.startswith(scaling)]:
        if not name.startswith(chosen):
            del values[name]
    if scaling + "kind" in values and cfg.position.rope.scaling.kind in ("yarn", "llama3"):
        length = cfg.position.rope.scaling.original_length or cfg.max_length
        values[f"{scaling}original_length"] = length
    gated = [name for name in values if name.split(".")[0] in OF_TRAINING]
    experts = cfg.moe.num_experts > 0
    gated += OF_ROUTING if experts else [name for name in values if name.startswith("moe.")]
    for name in (*gated, "layer_pattern", "position.source.range", "position.options"):
        values.pop(name, None)
    options = ("position.source.abacus", "position.source.random_float")
    for name in [name for name in values if name.startswith(options)]:
        del values[name]  # of a source that `position.source.kind` names
    layers = cfg.layer_specs(cfg.num_layers)
    specs = [(spec.position, spec.window) for spec in layers]
    if experts:
        values["moe.d_ff"] = cfg.expert_width
    return values | {
        "num_encoder_layers": cfg.encoder_layers,
        "num_kv_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        "d_ff": cfg.ff_width if not experts or cfg.moe.every > 1 else 0,
        "final_norm": cfg.has_final_norm,
        "layernorm.bias": cfg.layernorm.bias or cfg.norm == "rmsnorm",
        "window": [window for _, window in specs],
        "layer_pattern": [position for position, _ in specs],
        "head.pooling": cfg.head.pooling if cfg.head.kind == "sequence" else "",
        "tie_embeddings": cfg.tie_embeddings or cfg.head.kind != "vocabulary",
        "share_embeddings": cfg.share_embeddings or cfg.architecture != "encoder_decoder",
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Sections in sections as one, by path 'a.b.c'."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found
