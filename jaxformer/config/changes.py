"""What a restart of a run may change in its config, and what it may not."""

from collections.abc import Mapping
from typing import Any

from jaxformer.config.run import RunConfig

# None of these alters the numbers of a step.
MUTABLE = (
    "train.num_steps",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_latest",
    "train.keep_best",
    "train.max_skipped_steps",
    "train.check_every",
    "data.cache",
    "objective.distillation.teacher",  # where it lies: that it is the same is checked apart
    "eval.",
    "mesh.",
)


def config_differences(old: RunConfig, new: RunConfig) -> str:
    """Lists the fields that differ and must not; '' if there are none."""
    olds, news = _fields(old.to_dict()), _fields(new.to_dict())
    return "; ".join(
        f"{name} was {olds[name]!r}, now {news[name]!r}"
        for name in news
        if olds[name] != news[name] and not name.startswith(MUTABLE)
    )


def _fields(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        fields |= _fields(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return fields
