"""The interface of a position encoding.

A position *source* says which id a token has (contiguous ids come from `nn/masks.py` or the data);
an *encoding* only consumes the ids, through the four hooks below. A new encoding overrides the
hooks that it needs, in one file, and is added to the dict in `nn/positions/__init__.py`.
"""

import jax
from flax import nnx

from jaxformer.config import ModelConfig


class PositionEncoding(nnx.Module):
    """Does nothing: the encoding `none` (NoPE, Haviv et al. 2022, Kazemnejad et al. 2023)."""

    def __init__(self, cfg: ModelConfig):
        pass

    def embed(self, x_BLD: jax.Array, positions_BL: jax.Array) -> jax.Array:
        """Adds to the token embeddings, float32[B, L, D]."""
        return x_BLD

    def rotate(
        self, q_BLHK: jax.Array, k_BLGK: jax.Array, positions_BL: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Transforms new queries and keys before their product; the cache keeps the result."""
        return q_BLHK, k_BLGK

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array | None:
        """Added to the scaled attention logits: float32[B, H, L, S], dimensions of 1 allowed."""
        return None

    def allow(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array | None:
        """Restricts attention beyond the mask: bool[B, H, L, S], dimensions of 1 allowed."""
        return None
