"""Test-time schemes: the syntax of `--positions`, and a trained model under each of them.

A scheme changes the config of a trained model, never its parameters:

    trained     as it was trained
    pi:S        ids divided by S (position interpolation, Chen et al. 2023)
    ntk:S       a base raised for S times the trained length (NTK-aware)
    parts:S     NTK-by-parts                     yarn:S    … with YaRN's temperature
    dyn_ntk[:A] dynamic NTK, A = 1 unless given  llama3:S  Llama 3's scaling
    base:B      another base of the rotary frequencies
    none        no positions at all (NoPE), where the encoding has no parameters
    window:N    attention to fewer than N tokens away, in layers that see farther
    logn        logits times ln n / ln L beyond the trained length L

and any that do not contradict each other, joined: yarn:4+logn. The trained length is the most
tokens that a row of training held.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import nnx

from jaxformer.config import LayerSpec, ModelConfig, RunConfig
from jaxformer.config.layers import parse_layer_pattern
from jaxformer.config.position import PositionConfig, RopeConfig
from jaxformer.data.tasks import make_sampler
from jaxformer.errors import UserError
from jaxformer.models import abstract_params, build

WHERE = "positions"


class Part(NamedTuple):
    """One change, such as yarn:4; `number` is 0 where none was given."""

    kind: str
    number: float


@dataclasses.dataclass(frozen=True)
class Scheme:
    """`name` as it was written, and the changes joined by '+'."""

    name: str
    parts: tuple[Part, ...]


TRAINED = Scheme("trained", (Part("trained", 0.0),))


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model under a scheme: the trained parameters in a changed network."""

    name: str
    model: nnx.Module
    config: RunConfig


class Kind(NamedTuple):
    """What a kind of change does and takes."""

    change: Callable[[ModelConfig, Part, int], ModelConfig]  # … of the trained length
    sets: frozenset[str]  # what it decides: the parts of a scheme may not decide the same twice
    takes: str = ""  # what its number is, if it has one
    least: float = 0.0
    optional: bool = False


def parse_schemes(text: str) -> tuple[Scheme, ...]:
    """Parses comma-separated schemes, in their order, without repeats. Raises UserError."""
    schemes: dict[tuple[Part, ...], Scheme] = {}
    for name in text.split(","):
        scheme = _parse(name.strip())
        schemes.setdefault(scheme.parts, scheme)
    return tuple(schemes.values())


def trained_length(cfg: RunConfig) -> int:
    """The most tokens in a row of training: `data.length`, of a task its longest sentence."""
    if cfg.data.source == "task":
        return make_sampler(cfg).most_inputs(cfg.data.task.max_length)
    tasks = {"agreement": 7 + 4 * cfg.data.agreement.max_modifiers}
    return tasks.get(cfg.data.source, max(cfg.data.length, cfg.data.target_length))


def configure(scheme: Scheme, cfg: ModelConfig, length: int) -> ModelConfig:
    """The model's config under a scheme, `length` being the trained one.

    Raises UserError where a scheme contradicts the model.
    """
    for part in scheme.parts:
        try:
            cfg = KINDS[part.kind].change(cfg, part, length)
            cfg.check()
        except UserError as error:
            what = error.what if error.where == WHERE else f"{error.where} {error.what}"
            raise UserError(WHERE, f"has {scheme.name!r}, but {what}", error.mend) from error
    return cfg


def make_variant(scheme: Scheme, model: nnx.Module, cfg: RunConfig) -> Variant:
    """A trained model under a scheme. Raises UserError where its parameters would not fit."""
    changed = configure(scheme, cfg.model, trained_length(cfg))
    source = cfg.model.position.source.kind
    if source in ("randomized", "random_float") and any(
        part.kind in ("logn", "dyn_ntk") for part in scheme.parts
    ):
        what = f"has {scheme.name!r}, which goes by a text's largest id, but ids are {source}"
        raise UserError(WHERE, what, "it would change texts of the trained length: leave it out")
    if changed == cfg.model:
        return Variant(scheme.name, model, cfg)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    module = build(changed, cfg.compute_dtype)
    if lost := sorted(_paths(params) ^ _paths(abstract_params(module))):
        what = f"has {scheme.name!r}, which leaves {lost[0]} out, a trained parameter"
        raise UserError(WHERE, what, "it would be another model: choose other schemes")
    model = nnx.merge(nnx.split(module)[0], params)
    return Variant(scheme.name, model, dataclasses.replace(cfg, model=changed))


def _paths(params: object) -> set[str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves}


def _parse(name: str) -> Scheme:
    parts = tuple(_part(name, text.strip()) for text in name.split("+"))
    decided: dict[str, Part] = {}
    for part in parts:
        for what in sorted(KINDS[part.kind].sets):
            if what in decided:
                both = f"{decided[what].kind} and {part.kind}"
                mend = f"both decide {what}: join others"
                raise UserError(WHERE, f"has {name!r}, where {both} contradict each other", mend)
            decided[what] = part
    return Scheme(name, parts)


def _part(name: str, text: str) -> Part:
    kind_name, colon, number = text.partition(":")
    if kind_name not in KINDS:
        near = difflib.get_close_matches(kind_name, KINDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(WHERE, f"has {name!r}", f"{hint}choose from {', '.join(KINDS)}")
    kind = KINDS[kind_name]
    if not colon and (kind.optional or not kind.takes):
        return Part(kind_name, 0.0)
    if not kind.takes:
        raise UserError(WHERE, f"has {name!r}", f"{kind_name} takes no number")
    value = _number(number)
    fits = math.isfinite(value) and value >= kind.least
    if not fits or (kind.takes == "a number of tokens" and value != round(value)):
        mend = f"write {kind_name}:N, {kind.takes} of at least {kind.least:g}"
        raise UserError(WHERE, f"has {name!r}", mend)
    return Part(kind_name, value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -math.inf  # below whatever is the least


def _trained(cfg: ModelConfig, part: Part, length: int) -> ModelConfig:
    return cfg


def _scale(cfg: ModelConfig, part: Part, length: int) -> ModelConfig:
    """Scales rotary frequencies; linear and ntk know no trained length, dynamic_ntk no factor."""
    rope = _rope(cfg)
    if rope.scaling.kind != "none":
        what = f"the model was trained with rope.scaling.kind = {rope.scaling.kind}"
        raise UserError(WHERE, what, "its frequencies are scaled once: choose other schemes")
    kind = SCALINGS[part.kind]
    scaling = dataclasses.replace(rope.scaling, kind=kind)
    if kind == "dynamic_ntk":
        dynamic = dataclasses.replace(scaling.dynamic_ntk, alpha=part.number or 1.0)
        scaling = dataclasses.replace(scaling, dynamic_ntk=dynamic)
    else:
        scaling = dataclasses.replace(scaling, factor=part.number)
    if kind not in ("linear", "ntk"):
        scaling = dataclasses.replace(scaling, original_length=length)
    rope = dataclasses.replace(rope, scaling=scaling)
    return _at(cfg, dataclasses.replace(cfg.position, rope=rope))


def _base(cfg: ModelConfig, part: Part, length: int) -> ModelConfig:
    rope = dataclasses.replace(_rope(cfg), base=part.number)
    return _at(cfg, dataclasses.replace(cfg.position, rope=rope))


def _none(cfg: ModelConfig, part: Part, length: int) -> ModelConfig:
    specs = [LayerSpec("none", s.window) for s in parse_layer_pattern(cfg.layer_pattern)]
    cfg = dataclasses.replace(cfg, layer_pattern=_pattern(specs))
    return _at(cfg, dataclasses.replace(cfg.position, kind="none", options=""))


def _window(cfg: ModelConfig, part: Part, length: int) -> ModelConfig:
    size = int(part.number)
    specs = parse_layer_pattern(cfg.layer_pattern) or (LayerSpec(cfg.position.kind, cfg.window),)
    narrow = [LayerSpec(s.position, min(s.window or size, size)) for s in specs]
    if narrow == list(specs):
        what = f"all layers have a window of at most {max(s.window for s in specs)}"
        raise UserError(WHERE, what, "it would change nothing: give a smaller one")
    if cfg.layer_pattern:
        return dataclasses.replace(cfg, layer_pattern=_pattern(narrow))
    return dataclasses.replace(cfg, window=size)


def _logn(cfg: ModelConfig, part: Part, length: int) -> ModelConfig:
    if cfg.position.logn_length:
        what = f"the model was trained with position.logn_length = {cfg.position.logn_length}"
        raise UserError(WHERE, what, "leave it out")
    return _at(cfg, dataclasses.replace(cfg.position, logn_length=length))


def _rope(cfg: ModelConfig) -> RopeConfig:
    if not {"rope", "xpos"} & set(cfg.position_kinds):
        what = f"the positions of the model are {' and '.join(cfg.position_kinds)}"
        raise UserError(WHERE, what, "only rope and xpos have frequencies to change")
    return cfg.position.rope


def _at(cfg: ModelConfig, position: PositionConfig) -> ModelConfig:
    return dataclasses.replace(cfg, position=position)


def _pattern(specs: list[LayerSpec]) -> str:
    """What `parse_layer_pattern` reads back."""
    return ", ".join(s.position + (f":window={s.window}" if s.window else "") for s in specs)


SCALINGS = {  # scheme -> rope.scaling.kind
    "pi": "linear",
    "ntk": "ntk",
    "dyn_ntk": "dynamic_ntk",
    "parts": "ntk_by_parts",
    "yarn": "yarn",
    "llama3": "llama3",
}
FREQUENCIES = frozenset({"the scaling"})
ROTATION = FREQUENCIES | {"the base"}
KINDS = {
    "trained": Kind(_trained, ROTATION | {"the window", "the logit scale"}),
    **{name: Kind(_scale, FREQUENCIES, "a factor", 1.0, name == "dyn_ntk") for name in SCALINGS},
    "base": Kind(_base, frozenset({"the base"}), "a base", 1.0),
    "none": Kind(_none, ROTATION),
    "window": Kind(_window, frozenset({"the window"}), "a number of tokens", 1.0),
    "logn": Kind(_logn, frozenset({"the logit scale"})),
}
