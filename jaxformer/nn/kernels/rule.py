"""What an attention kernel has to compute, whichever kernel it is."""

import dataclasses

import jax

from jaxformer.nn.dropout import RowKey
from jaxformer.nn.masks import Visibility
from jaxformer.nn.positions import PositionEncoding


@dataclasses.dataclass(frozen=True)
class Rule:
    """softmax(softcap(scale · q kᵀ) + bias, restricted to the visible keys and a sink) v.

    softcap(x) = c tanh(x / c) (Gemma 2, §2); 0 is none. `sink_H` float32[H] adds a key of value 0
    whose logit is learned, one a head (Miller 2023; gpt-oss). Dropout acts on the weights.
    """

    visibility: Visibility
    scale: float
    softcap: float = 0.0
    sink_H: jax.Array | None = None
    encoding: PositionEncoding | None = None  # its hooks bias, allow, score and mix; or none
    q_positions_BL: jax.Array | None = None
    k_positions_BS: jax.Array | None = None
    dropout_rate: float = 0.0
    key: RowKey | None = None
    site: str = "attention_weights"
    layer: jax.Array | int = 0
    captures: bool = False  # the weights themselves are asked for

    @property
    def places(self) -> tuple[jax.Array, jax.Array]:
        """Ids of the queries and of the keys, which there are where there is an encoding."""
        assert self.q_positions_BL is not None
        assert self.k_positions_BS is not None
        return self.q_positions_BL, self.k_positions_BS


def overrides(encoding: PositionEncoding, *hooks: str) -> bool:
    """Whether an encoding has one of these hooks of its own, so that it may return something."""
    return any(getattr(type(encoding), h) is not getattr(PositionEncoding, h) for h in hooks)
