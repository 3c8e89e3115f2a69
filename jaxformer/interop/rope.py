"""Rotary positions and windows of a config.json, in the forms of all versions of transformers."""

from collections.abc import Sequence
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.fields import Fields

KINDS = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
SCALING = "position.rope.scaling"
SLIDING, FULL = "sliding_attention", "full_attention"


def read_rope(fields: Fields) -> dict[str, Any]:
    """Changes of position.rope from `rope_parameters`, or `rope_theta` and `rope_scaling`."""
    base = fields.number("rope_theta", 10000.0)
    found: dict[str, Any] = {"position.kind": "rope", "position.rope.base": base}
    old, new = fields.section("rope_scaling"), fields.section("rope_parameters")
    scaling = new or old
    if scaling is None:
        return found
    found["position.rope.base"] = scaling.number("rope_theta", base)
    name = "rope_type" if scaling.get("rope_type") is not None else "type"
    kind = found[f"{SCALING}.kind"] = scaling.choice(name, KINDS, "default")
    scaling.only("partial_rotary_factor", 1.0)
    if kind == "none":
        return found
    found[f"{SCALING}.factor"] = scaling.number("factor")
    length = fields.integer("max_position_embeddings", 2048)
    trained = scaling.integer("original_max_position_embeddings", length)
    if kind == "llama3":
        found |= {
            f"{SCALING}.original_length": trained,
            f"{SCALING}.llama3.low_frequency_factor": scaling.number("low_freq_factor"),
            f"{SCALING}.llama3.high_frequency_factor": scaling.number("high_freq_factor"),
        }
    if kind == "yarn":
        for absent in ("mscale", "mscale_all_dim"):
            scaling.only(absent, None)
        scaling.only("truncate", True)
        found |= {
            f"{SCALING}.original_length": trained,
            f"{SCALING}.yarn.beta_fast": scaling.number("beta_fast", 32.0),
            f"{SCALING}.yarn.beta_slow": scaling.number("beta_slow", 1.0),
            f"{SCALING}.yarn.temperature": scaling.number("attention_factor", 0.0),
        }
    return found


def write_rope(cfg: ModelConfig) -> dict[str, Any]:
    """Both forms where they say the same, so that old readers find theirs."""
    rope = cfg.position.rope
    scaling = rope.scaling
    kind = next((theirs for theirs, ours in KINDS.items() if ours == scaling.kind), scaling.kind)
    found: dict[str, Any] = {"rope_theta": rope.base, "rope_type": kind}
    if kind != "default":
        found["factor"] = scaling.factor
    if kind in ("llama3", "yarn"):
        found["original_max_position_embeddings"] = scaling.original_length or cfg.max_length
    if kind == "llama3":
        found["low_freq_factor"] = scaling.llama3.low_frequency_factor
        found["high_freq_factor"] = scaling.llama3.high_frequency_factor
    if kind == "yarn":
        found |= {"beta_fast": scaling.yarn.beta_fast, "beta_slow": scaling.yarn.beta_slow}
        if scaling.yarn.temperature:
            found["attention_factor"] = scaling.yarn.temperature
    return {"rope_parameters": found, "rope_theta": rope.base}


def windows(slides: Sequence[bool], window: int) -> dict[str, Any]:
    """`window` of all layers alike, or a pattern of as few layers as repeat."""
    if not any(slides) or not window:
        return {}
    if all(slides):
        return {"window": window}
    period = next(
        p
        for p in range(1, len(slides) + 1)
        if all(slide == slides[i % p] for i, slide in enumerate(slides))
    )
    parts = [f"rope:window={window}" if slide else "rope" for slide in slides[:period]]
    return {"layer_pattern": ", ".join(parts)}


def read_windows(fields: Fields, slides: Sequence[bool], window: int) -> dict[str, Any]:
    """The same where `layer_types` may say which layers slide."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return windows(slides, window)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        fields.refuse("layer_types", f"is {kinds!r}", "it takes a list of names")
    if len(kinds) != len(slides):
        what = f"names {len(kinds)} layers of {len(slides)}"
        fields.refuse("layer_types", what, "copy it once more")
    if other := sorted(set(kinds) - {SLIDING, FULL}):
        mend = f"it cannot be read: jaxformer has {SLIDING}, {FULL}"
        fields.refuse("layer_types", f"has {other[0]!r}", mend)
    return windows([kind == SLIDING for kind in kinds], window)


def write_windows(cfg: ModelConfig) -> dict[str, Any]:
    """`sliding_window` and `layer_types`; a model has one width of windows, or none."""
    widths = [spec.window for spec in cfg.layer_specs(cfg.num_layers)]
    found: dict[str, Any] = {"sliding_window": max(widths) or None}
    return found | {"layer_types": [SLIDING if width else FULL for width in widths]}
