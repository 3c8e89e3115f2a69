"""The encoder-decoder Transformer; Vaswani et al. 2017."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.models.heads import VocabularyHead
from jaxformer.models.output import Output
from jaxformer.models.trunk import Trunk, make_embedding
from jaxformer.nn import masks
from jaxformer.nn.cache import Cache
from jaxformer.nn.context import Source
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.linear import Embedding
from jaxformer.nn.routing import Routing
from jaxformer.nn.routing import losses as routing_losses
from jaxformer.nn.stack import source_caches


class EncoderDecoder(nnx.Module):
    """A bidirectional encoder of the source, a causal decoder of the target that looks at it."""

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        self.config, self.dtype = cfg, dtype
        shared = cfg.share_embeddings
        self.embedding = make_embedding(cfg) if shared else None
        self.encoder = Trunk(
            cfg, dtype, causal=False, num_layers=cfg.encoder_layers, embeds=not shared
        )
        self.decoder = Trunk(
            cfg, dtype, causal=True, num_layers=cfg.num_layers, cross=True, embeds=not shared
        )
        self.head = VocabularyHead(cfg, dtype)

    def __call__(
        self,
        source_BS: jax.Array,
        target_BL: jax.Array,
        source_segment_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        source_positions: jax.Array | None = None,
        positions: jax.Array | None = None,
        key: RowKey | jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Output:
        """Predicts each next target token. A target document sees the source segment of its id.

        Other arguments as for `Decoder`; captures are the decoder's.
        """
        key = RowKey.of(key, source_BS.shape[0])
        hidden_BSD, routing = self._encode(source_BS, source_segment_ids, source_positions, key)
        if source_segment_ids is None:
            source_segment_ids = jnp.ones_like(source_BS)
        out = self.decode(
            target_BL,
            segment_ids,
            positions,
            hidden=hidden_BSD,
            source_segment_ids=source_segment_ids,
            key=key,
            capture=capture,
        )
        if routing is None:
            return out
        losses = routing_losses(self.config.moe, routing, source_segment_ids, "encoder_")
        both = jax.tree.map(lambda *parts: jnp.concatenate(parts), routing, out.routing)
        return dataclasses.replace(out, losses=out.losses | losses, routing=both)

    def encode(
        self,
        source_BS: jax.Array,
        source_segment_ids: jax.Array | None = None,
        source_positions: jax.Array | None = None,
        key: RowKey | jax.Array | None = None,
    ) -> jax.Array:
        """Encoder states [B, S, D]."""
        return self._encode(source_BS, source_segment_ids, source_positions, key)[0]

    def _encode(
        self,
        source_BS: jax.Array,
        source_segment_ids: jax.Array | None,
        source_positions: jax.Array | None,
        key: RowKey | jax.Array | None,
    ) -> tuple[jax.Array, Routing | None]:
        key = RowKey.of(key, source_BS.shape[0])
        hidden_BSD, _, captured = self.encoder.run(
            source_BS,
            source_segment_ids,
            source_positions,
            embedding=self.embedding,
            key=None if key is None else key.fold("encoder"),
        )
        return hidden_BSD, captured.get("routing")

    def attach(self, cache: Cache, hidden_BSD: jax.Array, segment_ids_BS: jax.Array) -> Cache:
        """A cache for `decode` that holds the source's keys and values of every layer."""
        layers = source_caches(self.decoder.layers, hidden_BSD)
        return dataclasses.replace(
            cache, source_layers=layers, source_segment_ids_BS=segment_ids_BS
        )

    def decode(
        self,
        target_BL: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: Cache | None = None,
        hidden: jax.Array | None = None,
        source_segment_ids: jax.Array | None = None,
        key: RowKey | jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Output:
        """Runs the decoder on encoder states, or on a cache to which they were attached."""
        if cache is not None:
            source_segment_ids = cache.source_segment_ids_BS
        if source_segment_ids is None or (hidden is None and cache is None):
            raise ValueError("decode takes encoder states and their segment ids, or such a cache")
        segments_BL = jnp.ones_like(target_BL) if segment_ids is None else segment_ids
        order_BL, order_BS = masks.order(segments_BL), masks.order(source_segment_ids)
        view = masks.Visibility(
            order_BL, order_BS, segments_BL, source_segment_ids, False, None, window=0
        )
        hidden_BLD, cache, captured = self.decoder.run(
            target_BL,
            segments_BL,
            positions,
            embedding=self.embedding,
            source=Source(hidden, view),
            cache=cache,
            key=RowKey.of(key, target_BL.shape[0]),
            capture=capture,
        )
        routing = captured.pop("routing", None)
        losses = routing_losses(self.config.moe, routing, segments_BL)
        return Output(self.readout(hidden_BLD), hidden_BLD, cache, losses, captured, routing)

    def readout(self, hidden: jax.Array) -> jax.Array:
        """Logits float32[..., V] of decoder states [..., D]."""
        return self.head(hidden, self._target_embedding)

    @property
    def _target_embedding(self) -> Embedding:
        embedding = self.embedding or self.decoder.embedding
        assert embedding is not None
        return embedding
