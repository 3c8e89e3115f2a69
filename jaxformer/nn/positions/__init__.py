"""Position encodings, one file a family."""

from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn.positions.base import PositionEncoding
from jaxformer.nn.positions.learned import Learned
from jaxformer.nn.positions.rope import Rope
from jaxformer.nn.positions.sinusoidal import Sinusoidal

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": PositionEncoding,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
}


def make_encodings(cfg: ModelConfig) -> nnx.Dict:
    """The encodings that the layers of a model use, by kind; trained ones are shared by layers."""
    return nnx.Dict({kind: ENCODINGS[kind](cfg) for kind in cfg.position_kinds})
