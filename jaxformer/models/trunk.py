"""Embeddings, layers and final norm: what encoders and decoders have in common."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import masks, parameters
from jaxformer.nn.cache import Cache
from jaxformer.nn.context import Context, Source
from jaxformer.nn.dropout import RowKey, dropout
from jaxformer.nn.linear import Embedding
from jaxformer.nn.norm import NORMS
from jaxformer.nn.patches import PatchEmbedding
from jaxformer.nn.positions import make_encodings
from jaxformer.nn.positions.sources import SOURCES
from jaxformer.nn.stack import make_layers, run_layers
from jaxformer.sharding import constrain

CAPTURES = ("attention_weights", "cross_attention_weights", "hidden_states")


class Trunk(nnx.Module):
    """Tokens to hidden states. `causal` decoders may be given a cache and a source to look at."""

    def __init__(
        self,
        cfg: ModelConfig,
        dtype: jnp.dtype,
        *,
        causal: bool,
        num_layers: int,
        cross: bool = False,
        embeds: bool = True,
    ):
        self.config, self.dtype, self.causal = cfg, dtype, causal
        self.embedding = make_embedding(cfg, dtype) if embeds else None
        self.position = make_encodings(cfg, causal)
        self.embedding_norm = NORMS[cfg.norm](cfg.d_model, cfg) if cfg.embedding_norm else None
        self.layers = make_layers(cfg, num_layers, dtype, cross=cross)
        self.final_norm = NORMS[cfg.norm](cfg.d_model, cfg) if cfg.has_final_norm else None

    def run(
        self,
        tokens_BL: jax.Array,
        segment_ids_BL: jax.Array | None,
        positions_BL: jax.Array | None,
        *,
        embedding: Embedding | None = None,
        prefix_BL: jax.Array | None = None,
        source: Source | None = None,
        cache: Cache | None = None,
        key: RowKey | None = None,
        capture: Sequence[str] = (),
    ) -> tuple[jax.Array, Cache | None, dict[str, Any]]:
        """Hidden states [B, L, D] in the compute type, the cache with the new tokens, captures.

        Of a model with experts their `routing` too.
        """
        if unknown := set(capture) - set(CAPTURES):
            raise ValueError(f"capture has no {sorted(unknown)}, only {CAPTURES}")
        kind = self.config.position.source.kind
        if positions_BL is None and not SOURCES[kind].is_default:
            raise ValueError(f"{kind} ids are not 0, 1, 2, …: give positions, by evaluation_ids")
        segments_BL = jnp.ones_like(tokens_BL) if segment_ids_BL is None else segment_ids_BL
        segments_BL = constrain(segments_BL, "batch", None)
        order_BL = masks.order(segments_BL)
        slots_BL, k_prefix = None, prefix_BL
        if cache is None:
            if positions_BL is None:
                positions_BL = masks.contiguous_positions(segments_BL)
            k_order, k_positions, k_segments = order_BL, positions_BL, segments_BL
            extents_BL = masks.extents(positions_BL, segments_BL)
        else:
            order_BL = cache.next_positions(segments_BL)
            if positions_BL is None:
                positions_BL = jnp.where(segments_BL != 0, order_BL, 0)
            cache, slots_BL = cache.reserve(positions_BL, segments_BL)
            k_order = jnp.arange(cache.capacity)[None]
            k_positions, k_segments = cache.positions_BC, cache.segment_ids_BC
            k_prefix = None if prefix_BL is None else cache.scatter(slots_BL, prefix_BL)
            extents_BL = jnp.broadcast_to(cache.extent_B[:, None], positions_BL.shape)
        view = masks.Visibility(
            order_BL,
            k_order,
            segments_BL,
            k_segments,
            self.causal,
            k_prefix,
            window=0,
            aligned=cache is None,
        )
        context = Context(
            self.position,
            view,
            positions_BL,
            k_positions,
            extents_BL,
            slots_BL,
            None if cache is None else cache.length_B,
            source,
            key,
            frozenset(capture),
        )
        x_BLD, caches, captured = run_layers(
            self.layers,
            self._embed(tokens_BL, positions_BL, embedding or self.embedding, key),
            context,
            remat=self.config.remat,
            caches=None if cache is None else cache.layers,
            cross_caches=None if cache is None else cache.source_layers,
        )
        if self.final_norm is not None:
            x_BLD = self.final_norm(x_BLD)
        if cache is not None:
            assert caches is not None
            cache = cache.with_layers(caches)
        return x_BLD, cache, captured

    def _embed(
        self,
        tokens_BL: jax.Array,
        positions_BL: jax.Array,
        embedding: Embedding | None,
        key: RowKey | None,
    ) -> jax.Array:
        assert embedding is not None
        cfg = self.config
        x_BLD = embedding(tokens_BL)
        if cfg.scale_embeddings:
            x_BLD = x_BLD * cfg.d_model**0.5
        for encoding in self.position.values():
            x_BLD = encoding.embed(x_BLD, positions_BL)
        if self.embedding_norm is not None:
            x_BLD = self.embedding_norm(x_BLD)
        site = "embedding" if self.causal else "source_embedding"
        x_BLD = dropout(x_BLD, cfg.dropout.embedding, key, site).astype(self.dtype)
        return constrain(x_BLD, "batch", "length", None)


def make_embedding(cfg: ModelConfig, dtype: Any = jnp.float32) -> Any:
    """The token embedding table [V, D], or what makes tokens of an image's patches in `dtype`."""
    if cfg.has_images:
        return PatchEmbedding(cfg, dtype)
    return Embedding(cfg.vocab_size, cfg.d_model, parameters.scheme(cfg).embedding)
