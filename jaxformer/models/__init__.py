"""The architectures. Modules describe the network; parameters are pure dicts outside of them.

module = build(cfg.model)                  # abstract: no memory
graphdef, abstract_params = nnx.split(module)
params = init(cfg.model, jax.random.key(0))
out = nnx.merge(graphdef, params)(tokens_BL)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.models.decoder import Decoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.forward import forward, in_parts, sums_over
from jaxformer.models.lstm import Lstm
from jaxformer.models.output import Output
from jaxformer.nn import parameters

Model = Decoder | Encoder | EncoderDecoder | Lstm
ARCHITECTURES = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
    "lstm": Lstm,
}

__all__ = [
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Lstm",
    "Model",
    "Output",
    "build",
    "forward",
    "in_parts",
    "init",
    "sums_over",
]


def build(cfg: ModelConfig, compute_dtype: str = "float32") -> Model:
    """The network as an abstract module: its parameters are shapes, not arrays."""
    if not cfg.vocab_size and not cfg.has_images:
        raise UserError("model.vocab_size", "is 0", "set it or resolve the config first")
    return ARCHITECTURES[cfg.architecture](cfg, jnp.dtype(compute_dtype))


def init(cfg: ModelConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh parameters, a pure nested dict of float32 arrays keyed by path."""
    return parameters.fill(build(cfg), key)


def abstract_params(module: nnx.Module) -> dict[str, Any]:
    """The shapes of a module's parameters, as a pure nested dict."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))
