"""Position encodings, one file a family."""

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
