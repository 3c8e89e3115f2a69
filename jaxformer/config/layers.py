"""Layers that differ, told in one string."""

import dataclasses
import re

from jaxformer.config.position import INPUT_POSITIONS, LAYER_POSITIONS, OWN_POSITION
from jaxformer.config.section import refuse


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """What may differ from layer to layer: position encoding, window (0: none), experts or not."""

    position: str
    window: int
    experts: bool = False


def parse_layer_pattern(text: str) -> tuple[LayerSpec, ...]:
    """Reads e.g. 'rope:window=256 x3, none': kind[:window=N][ xCOUNT], separated by commas.

    Raises UserError.
    """
    where, specs = "model.layer_pattern", []
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([\w.:]+?)(?::window=(\d+))?(?:\s+x(\d+))?\s*", part)
        if match is None:
            mend = "write kind[:window=N][ xCOUNT], e.g. 'rope:window=256 x3, none'"
            refuse(where, f"has {part.strip()!r}", mend)
        kind, window, count = match[1], int(match[2] or 0), int(match[3] or 1)
        if kind in INPUT_POSITIONS:
            mend = f"choose from {', '.join(LAYER_POSITIONS)}"
            refuse(where, f"has {kind}, which is added to the embeddings of all layers", mend)
        if kind not in LAYER_POSITIONS and not OWN_POSITION.fullmatch(kind):
            mend = f"choose from {', '.join(LAYER_POSITIONS)}, or your own module:Class"
            refuse(where, f"has {kind!r}", mend)
        if count < 1 or match[2] == "0":
            refuse(where, f"has {part.strip()!r}", "windows and counts are at least 1")
        specs += [LayerSpec(kind, window)] * count
    return tuple(specs)
