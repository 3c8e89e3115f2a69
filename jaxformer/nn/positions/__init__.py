"""Position encodings, one file a family."""

import importlib

from flax import nnx

from jaxformer.config import ModelConfig, RunConfig
from jaxformer.errors import UserError
from jaxformer.nn.positions.alibi import Alibi, LearnedAlibi
from jaxformer.nn.positions.base import PositionEncoding
from jaxformer.nn.positions.cope import Cope
from jaxformer.nn.positions.fire import Fire
from jaxformer.nn.positions.hard_alibi import HardAlibi
from jaxformer.nn.positions.kerple import KerpleLog, KerplePower
from jaxformer.nn.positions.learned import Learned
from jaxformer.nn.positions.rope import Rope
from jaxformer.nn.positions.sandwich import Sandwich
from jaxformer.nn.positions.shaw import Shaw
from jaxformer.nn.positions.sinusoidal import Sinusoidal
from jaxformer.nn.positions.t5 import T5
from jaxformer.nn.positions.xpos import Xpos

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": PositionEncoding,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
    "xpos": Xpos,
    "alibi": Alibi,
    "learned_alibi": LearnedAlibi,
    "hard_alibi": HardAlibi,
    "t5": T5,
    "kerple_log": KerpleLog,
    "kerple_power": KerplePower,
    "fire": Fire,
    "sandwich": Sandwich,
    "shaw": Shaw,
    "cope": Cope,
}


def encoding_class(kind: str) -> type[PositionEncoding]:
    """The class of a kind: a name of ours, or 'module:Class' of the user's. Raises UserError."""
    if kind in ENCODINGS:
        return ENCODINGS[kind]
    module, _, name = kind.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's file raises
        what = f"is {kind!r}, which cannot be imported ({type(error).__name__}: {error})"
        mend = "write module:Class of a module on the Python path"
        raise UserError("model.position.kind", what, mend) from error
    if not (isinstance(found, type) and issubclass(found, PositionEncoding)):
        what, mend = f"is {kind!r}, which is no PositionEncoding", "see nn/positions/base.py"
        raise UserError("model.position.kind", what, mend)
    return found


def make_encodings(cfg: ModelConfig, causal: bool) -> nnx.Dict:
    """The encodings that the layers of a model use, by kind; trained ones are shared by layers."""
    return nnx.Dict({kind: _make(kind, cfg, causal) for kind in cfg.position_kinds})


def _make(kind: str, cfg: ModelConfig, causal: bool) -> PositionEncoding:
    try:
        return encoding_class(kind)(cfg, causal)
    except UserError:
        raise
    except Exception as error:  # of the user's constructor
        what = f"is {kind!r}, whose constructor fails ({type(error).__name__}: {error})"
        raise UserError("model.position.kind", what, "--debug shows where") from error


def position_bound(cfg: ModelConfig) -> int:
    """The number of position ids that all encodings of a model can take; 0: no such bound."""
    bounds = [encoding_class(kind).bound(cfg) for kind in cfg.position_kinds]
    return min((bound for bound in bounds if bound), default=0)


def check_bounds(cfg: RunConfig) -> None:
    """Raises UserError where an encoding has fewer ids than rows of the data may ask for.

    The config itself knows learned tables; this knows an encoding of the user's own too.
    """
    source = cfg.model.position.source
    for spec in cfg.model.layer_specs(cfg.model.num_layers) if cfg.model.layer_pattern else ():
        if encoding_class(spec.position).at_input:
            what = f"has {spec.position}, which is added to the embeddings of all layers"
            raise UserError("model.layer_pattern", what, "make it model.position.kind")
    for kind in cfg.model.position_kinds:
        reads_ids = encoding_class(kind) is not PositionEncoding
        if source.kind == "random_float" and reads_ids and not encoding_class(kind).continuous:
            what = f"is {source.kind}, between whole positions, and {kind} does not declare them"
            mend = "choose randomized, or let the class say `continuous = True`"
            raise UserError("model.position.source.kind", what, mend)
        bound = encoding_class(kind).bound(cfg.model)
        for name in ("length", "target_length"):
            length = getattr(cfg.data, name)
            ids = source.num_ids(length, cfg.model.max_length)
            if bound and ids > bound:
                what = f"is {kind}, which has {bound} ids, but data.{name} = {length} needs {ids}"
                mend = "lower it, or what model.position.source draws from"
                raise UserError("model.position.kind", what, mend)
