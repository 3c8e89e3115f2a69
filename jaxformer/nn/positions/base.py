"""The interface of a position encoding.

A position *source* says which id a token has (contiguous ids come from `nn/masks.py` or the data);
an *encoding* only consumes the ids, through the hooks below. A new encoding overrides the hooks
that it needs, in one file, and declares what is true of it; `python -m
jaxformer.nn.positions.check module:Class` tries the declarations. A model uses it by
`model.position.kind = 'module:Class'`, or by a row in the dict of `nn/positions/__init__.py`.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig


class PositionEncoding(nnx.Module):
    """Does nothing: the encoding `none` (NoPE, Haviv et al. 2022, Kazemnejad et al. 2023).

    One object serves all layers of an encoder or decoder; its parameters are shared by them.
    Subclasses take (cfg, causal) and declare their parameters by `nn/parameters.declare`.
    """

    at_input: ClassVar[bool] = False  # added to the embeddings: cannot differ by layer
    # Adding a constant to all ids changes no logit; an object may deny it, by its config.
    shift_invariant: bool = True
    trained: ClassVar[bool] = False  # has parameters, and gradients reach them all
    cacheable: ClassVar[bool] = True  # prefill + cached decoding = the full forward pass
    # Takes positions between whole ones: id / unit, `unit` being cfg.position.source.unit
    continuous: ClassVar[bool] = False

    def __init__(self, cfg: ModelConfig, causal: bool):
        pass

    @classmethod
    def bound(cls, cfg: ModelConfig) -> int:
        """How many ids there are, 0 … bound - 1; 0: without end."""
        return 0

    def embed(self, x_BLD: jax.Array, positions_BL: jax.Array) -> jax.Array:
        """Adds to the token embeddings, float32[B, L, D]."""
        return x_BLD

    def rotate(
        self,
        q_BLHK: jax.Array,
        k_BLGK: jax.Array,
        positions_BL: jax.Array,
        extents_BL: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Transforms new queries and keys before their product; the cache keeps the result.

        extents int32[B, L]: the largest id of each token's document plus 1. In cached decoding it
        counts the tokens that the call may still add, so it is the same throughout the call.
        """
        return q_BLHK, k_BLGK

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array | None:
        """Added to the scaled attention logits: float32[B, H, L, S], dimensions of 1 allowed."""
        return None

    def allow(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array | None:
        """Restricts attention beyond the mask: bool[B, H, L, S], dimensions of 1 allowed."""
        return None

    # The two below see what tokens say, not only where they are: the reference kernel alone has
    # them, since others never hold all products of a query with its keys.

    def score(
        self,
        q_BLHK: jax.Array,
        logits_BHLS: jax.Array,
        mask_BHLS: jax.Array,
        q_positions_BL: jax.Array,
        k_positions_BS: jax.Array,
    ) -> jax.Array | None:
        """Added to the logits, by the queries and the scaled logits: float32[B, H, L, S].

        `mask`, with dimensions of 1, says which keys are visible. Keys of a document lie in its
        order, in a cache too, whatever their ids.
        """
        return None

    def mix(
        self, weights_BHLS: jax.Array, q_positions_BL: jax.Array, k_positions_BS: jax.Array
    ) -> jax.Array | None:
        """Added to what the heads give, by the attention weights: float32[B, L, H, K]."""
        return None


def distances(q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
    """i - j of each query i and key j: int32[B, L, S]."""
    return q_positions_BL[..., None] - k_positions_BS[:, None]


def away(q_positions_BL: jax.Array, k_positions_BS: jax.Array, unit: int) -> jax.Array:
    """|i - j| in positions, of ids that are `unit` to a position: float32[B, L, S]."""
    return jnp.abs(distances(q_positions_BL, k_positions_BS)).astype(jnp.float32) / unit
