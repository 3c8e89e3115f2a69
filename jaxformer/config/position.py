"""The fields of position encodings."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal

from jaxformer.config.position_source import PositionSourceConfig
from jaxformer.config.section import Section, at_least, positive, refuse, unread

INPUT_POSITIONS = ("sinusoidal", "learned")  # added to the embeddings: the same for all layers
LAYER_POSITIONS = (  # act within attention: may differ from layer to layer
    "none",
    "rope",
    "xpos",
    "alibi",
    "learned_alibi",
    "hard_alibi",
    "t5",
    "kerple_log",
    "kerple_power",
    "fire",
    "sandwich",
    "shaw",
    "cope",
)
CONTENT_POSITIONS = ("shaw", "cope")  # see queries: only the reference kernel has them
TABLE_POSITIONS = ("learned", "t5", "shaw")  # look up ids or distances, which must be whole
OWN_POSITION = re.compile(r"[\w.]+:\w+")  # module:Class, the user's own


@dataclasses.dataclass(frozen=True)
class SinusoidalConfig(Section):
    base: float
    layout: Literal["interleaved", "concatenated"]
    scale: float


@dataclasses.dataclass(frozen=True)
class DynamicNtkConfig(Section):
    alpha: float


@dataclasses.dataclass(frozen=True)
class NtkByPartsConfig(Section):
    beta_fast: float
    beta_slow: float


@dataclasses.dataclass(frozen=True)
class YarnConfig(Section):
    beta_fast: float
    beta_slow: float
    temperature: float


@dataclasses.dataclass(frozen=True)
class Llama3Config(Section):
    low_frequency_factor: float
    high_frequency_factor: float


@dataclasses.dataclass(frozen=True)
class ScalingConfig(Section):
    kind: Literal["none", "linear", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "llama3"]
    factor: float
    original_length: int
    dynamic_ntk: DynamicNtkConfig
    ntk_by_parts: NtkByPartsConfig
    yarn: YarnConfig
    llama3: Llama3Config


@dataclasses.dataclass(frozen=True)
class RopeConfig(Section):
    base: float
    layout: Literal["half", "interleaved"]
    fraction: float
    keep: float
    scaling: ScalingConfig


@dataclasses.dataclass(frozen=True)
class XposConfig(Section):
    gamma: float
    scale_base: float


@dataclasses.dataclass(frozen=True)
class HardAlibiConfig(Section):
    heads: int


@dataclasses.dataclass(frozen=True)
class T5Config(Section):
    num_buckets: int
    max_distance: int


@dataclasses.dataclass(frozen=True)
class FireConfig(Section):
    init_length: float
    width: int


@dataclasses.dataclass(frozen=True)
class SandwichConfig(Section):
    width: int


@dataclasses.dataclass(frozen=True)
class ShawConfig(Section):
    max_distance: int
    on_values: bool


@dataclasses.dataclass(frozen=True)
class CopeConfig(Section):
    num_positions: int


@dataclasses.dataclass(frozen=True)
class PositionConfig(Section):
    kind: str
    options: str
    source: PositionSourceConfig
    logn_length: int
    sinusoidal: SinusoidalConfig
    rope: RopeConfig
    xpos: XposConfig
    hard_alibi: HardAlibiConfig
    t5: T5Config
    fire: FireConfig
    sandwich: SandwichConfig
    shaw: ShawConfig
    cope: CopeConfig


def check_rope(rope: RopeConfig, head_width: int) -> None:
    """Raises UserError where the fields of `rope` contradict each other or the head's width."""
    where = "model.position.rope"
    positive(where, rope, "base")
    if not 0 < rope.fraction <= 1:
        refuse(f"{where}.fraction", f"is {rope.fraction}", "give a share above 0 and up to 1")
    rotated = rope.fraction * head_width
    whole = abs(rotated - round(rotated)) < 1e-6  # .29 · 200 is 57.99999999999999
    if not whole or round(rotated) % 2 or not round(rotated):
        refuse(
            f"{where}.fraction",
            f"rotates {rotated:g} of {head_width} dimensions of a head",
            "rotation needs an even whole number of them",
        )
    if not 0 <= rope.keep <= 1:
        refuse(f"{where}.keep", f"is {rope.keep}", "give a share from 0 to 1")
    _check_scaling(rope, round(rotated))


def _check_scaling(rope: RopeConfig, rotated: int) -> None:
    where, scaling = "model.position.rope.scaling", rope.scaling
    by_factor = ("linear", "ntk", "ntk_by_parts", "yarn", "llama3")
    by_length = ("dynamic_ntk", "ntk_by_parts", "yarn", "llama3")
    kind, factor = scaling.kind, scaling.factor
    if factor < 1:
        refuse(f"{where}.factor", f"is {factor}", "give 1 or more: how much longer texts get")
    changed = factor if factor != 1 else 0
    readers = f"{where}.kind = {', '.join(by_factor)}"
    unread(f"{where}.factor", changed, kind in by_factor, readers)
    at_least(where, scaling, 0, "original_length")
    readers = f"{where}.kind = {', '.join(by_length)}"
    unread(f"{where}.original_length", scaling.original_length, kind in by_length, readers)
    if kind != "none" and int(rope.keep * rotated / 2 + 1e-6) == 0:
        refuse(
            f"{where}.kind",
            f"is {kind} while model.position.rope.keep = {rope.keep} leaves no frequency",
            "keep some or set it to none",
        )
    if kind in ("ntk", "dynamic_ntk") and rotated < 4:
        refuse(f"{where}.kind", f"is {kind} of {rotated} rotated dimensions", "it needs 4 or more")
    if kind == "dynamic_ntk":
        at_least(f"{where}.dynamic_ntk", scaling.dynamic_ntk, 1, "alpha")
    if kind in ("ntk_by_parts", "yarn"):
        betas = scaling.yarn if kind == "yarn" else scaling.ntk_by_parts
        positive(f"{where}.{kind}", betas, "beta_fast", "beta_slow")
        if betas.beta_slow >= betas.beta_fast:
            mend = f"give less than beta_fast = {betas.beta_fast}"
            refuse(f"{where}.{kind}.beta_slow", f"is {betas.beta_slow}", mend)
        if rope.base <= 1:
            refuse("model.position.rope.base", f"is {rope.base}", f"{kind} needs more than 1")
    at_least(f"{where}.yarn", scaling.yarn, 0, "temperature")
    if kind == "llama3":
        positive(f"{where}.llama3", scaling.llama3, "low_frequency_factor")
        low = scaling.llama3.low_frequency_factor
        if scaling.llama3.high_frequency_factor <= low:
            refuse(
                f"{where}.llama3.high_frequency_factor",
                f"is {scaling.llama3.high_frequency_factor}",
                f"give more than low_frequency_factor = {low}",
            )


def check_others(position: PositionConfig, kinds: Sequence[str], num_heads: int) -> None:
    """Raises UserError for the fields of encodings in use that have one or two."""
    where = "model.position"
    if "fire" in kinds:
        positive(f"{where}.fire", position.fire, "init_length")
        at_least(f"{where}.fire", position.fire, 1, "width")
    if "xpos" in kinds:
        positive(f"{where}.xpos", position.xpos, "gamma", "scale_base")
        for name, low, high in (("gamma", 1e-6, 1e6), ("scale_base", 0.1, math.inf)):
            value = getattr(position.xpos, name)
            if not low <= value <= high:
                refuse(f"{where}.xpos.{name}", f"is {value}", f"give {low:g} to {high:g}")
    if "hard_alibi" in kinds:
        heads = position.hard_alibi.heads
        at_least(f"{where}.hard_alibi", position.hard_alibi, 0, "heads")
        if heads > num_heads:
            what = f"is {heads}, more than model.num_heads = {num_heads}"
            refuse(f"{where}.hard_alibi.heads", what, "give up to that many, or 0 for half of them")
        if not heads and num_heads == 1:
            what = "is 0 with a single head, of which there is no half"
            refuse(f"{where}.hard_alibi.heads", what, "give 1, or model.num_heads = 2 or more")
    if "sandwich" in kinds:
        at_least(f"{where}.sandwich", position.sandwich, 2, "width")
        if position.sandwich.width % 2:
            what = f"is {position.sandwich.width}"
            refuse(f"{where}.sandwich.width", what, "sines and cosines come in pairs: make it even")
    if "shaw" in kinds:
        at_least(f"{where}.shaw", position.shaw, 1, "max_distance")
    if "cope" in kinds:
        at_least(f"{where}.cope", position.cope, 2, "num_positions")


def check_t5(t5: T5Config, bidirectional: bool) -> None:
    """Raises UserError where buckets do not come out whole or the wide ones have no room."""
    where, least = "model.position.t5", 4 if bidirectional else 2
    at_least(where, t5, least, "num_buckets")
    if t5.num_buckets % least:
        half = "each side has half of them, half of those" if bidirectional else "half of them"
        mend = f"give a multiple of {least}: {half} for single distances"
        refuse(f"{where}.num_buckets", f"is {t5.num_buckets}", mend)
    if t5.max_distance <= t5.num_buckets // 2:
        refuse(
            f"{where}.max_distance",
            f"is {t5.max_distance}",
            f"give more than half of num_buckets = {t5.num_buckets}",
        )
