"""The decoder-only Transformer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.models.heads import VocabularyHead
from jaxformer.models.output import CAPTURES, Output
from jaxformer.nn import masks, parameters
from jaxformer.nn.cache import Cache
from jaxformer.nn.context import Context
from jaxformer.nn.dropout import RowKey, dropout
from jaxformer.nn.linear import Embedding
from jaxformer.nn.norm import NORMS
from jaxformer.nn.positions import ENCODINGS
from jaxformer.nn.stack import make_layers, run_layers
from jaxformer.sharding import constrain


class Decoder(nnx.Module):
    """Token embedding, causal layers, final norm, head; Radford et al. 2019 when Pre-LN."""

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        self.config, self.dtype = cfg, dtype
        stddev = 0.02 if cfg.initializer == "gpt2" else cfg.d_model**-0.5
        self.embedding = Embedding(cfg.vocab_size, cfg.d_model, parameters.normal(stddev))
        self.position = ENCODINGS[cfg.position.kind](cfg)
        self.layers = make_layers(cfg, dtype)
        self.final_norm = NORMS[cfg.norm](cfg.d_model, cfg) if cfg.has_final_norm else None
        self.head = VocabularyHead(cfg, dtype)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: Cache | None = None,
        key: RowKey | jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Output:
        """Predicts each next token.

        segment_ids int32[B, L]: 0 is padding, 1… are documents; default all 1.
        positions int32[B, L]: default contiguous from 0 in each document, or continuing the cache.
        cache: keys and values of earlier tokens; the output holds the cache with these appended.
        key: turns dropout on; a plain key stands for rows 0 … B - 1 (see nn/dropout.py).
        capture: names from models/output.py.
        """
        if unknown := set(capture) - set(CAPTURES):
            raise ValueError(f"capture has no {sorted(unknown)}, only {CAPTURES}")
        key = RowKey.of(key, tokens_BL.shape[0])
        segment_ids_BL = jnp.ones_like(tokens_BL) if segment_ids is None else segment_ids
        positions_BL, cache, context = self._context(segment_ids_BL, positions, cache, key, capture)
        x_BLD = self.embedding(tokens_BL)
        if self.config.scale_embeddings:
            x_BLD = x_BLD * self.config.d_model**0.5
        x_BLD = self.position.embed(x_BLD, positions_BL)
        x_BLD = dropout(x_BLD, self.config.dropout.embedding, key, "embedding").astype(self.dtype)
        x_BLD = constrain(x_BLD, "batch", "length", None)
        caches = None if cache is None else cache.layers
        x_BLD, caches, captured = run_layers(self.layers, x_BLD, context, caches)
        if self.final_norm is not None:
            x_BLD = self.final_norm(x_BLD)
        if cache is not None:
            assert caches is not None
            cache = cache.with_layers(caches)
        return Output(self.readout(x_BLD), x_BLD, cache, {}, captured)

    def readout(self, hidden: jax.Array) -> jax.Array:
        """Logits float32[..., V] of hidden states [..., D]."""
        return self.head(hidden, self.embedding)

    def _context(
        self,
        segment_ids_BL: jax.Array,
        positions: jax.Array | None,
        cache: Cache | None,
        key: RowKey | None,
        capture: Sequence[str],
    ) -> tuple[jax.Array, Cache | None, Context]:
        """Positions of the new tokens, the cache with their slots taken, the shared context."""
        order_BL = masks.order(segment_ids_BL)
        if cache is None:
            slots_BL = None
            positions_BL = positions
            if positions_BL is None:
                positions_BL = masks.contiguous_positions(segment_ids_BL)
            k_order, k_positions, k_segment_ids = order_BL, positions_BL, segment_ids_BL
        else:
            order_BL = cache.next_positions(segment_ids_BL)
            positions_BL = positions
            if positions_BL is None:
                positions_BL = jnp.where(segment_ids_BL != 0, order_BL, 0)
            cache, slots_BL = cache.reserve(positions_BL, segment_ids_BL)
            k_order = jnp.arange(cache.capacity)[None]
            k_positions, k_segment_ids = cache.positions_BC, cache.segment_ids_BC
        visibility = masks.Visibility(order_BL, k_order, segment_ids_BL, k_segment_ids, True)
        context = Context(
            self.position, visibility, positions_BL, k_positions, slots_BL, key, frozenset(capture)
        )
        return positions_BL, cache, context
