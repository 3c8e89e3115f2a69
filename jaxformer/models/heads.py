"""From hidden states to predictions."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.block import kernel_initializers
from jaxformer.nn.linear import Embedding, affine


class VocabularyHead(nnx.Module):
    """Logits over the vocabulary: a kernel of its own, or the embedding table when tied."""

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        self.dtype, self.kernel, self.bias = dtype, nnx.data(None), nnx.data(None)
        if not cfg.tie_embeddings:
            shape = (cfg.d_model, cfg.vocab_size)
            self.kernel = parameters.declare(shape, kernel_initializers(cfg)[0])
        if cfg.head_bias:
            self.bias = parameters.declare((cfg.vocab_size,), parameters.zeros)

    def __call__(self, x: jax.Array, embedding: Embedding) -> jax.Array:
        """float32[..., V] from [..., D]."""
        kernel_DV = embedding.table[...].T if self.kernel is None else self.kernel[...]
        bias_V = None if self.bias is None else self.bias[...]
        return affine(x, kernel_DV, bias_V, self.dtype)
