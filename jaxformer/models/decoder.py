"""The decoder-only Transformer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.models.heads import VocabularyHead
from jaxformer.models.output import Output
from jaxformer.models.trunk import Trunk
from jaxformer.nn.cache import Cache
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.routing import losses as routing_losses


class Decoder(Trunk):
    """Token embedding, causal layers, final norm, head; Radford et al. 2019 when Pre-LN."""

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        super().__init__(cfg, dtype, causal=True, num_layers=cfg.num_layers)
        self.head = VocabularyHead(cfg, dtype)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: Cache | None = None,
        key: RowKey | jax.Array | None = None,
        capture: Sequence[str] = (),
        prefix: jax.Array | None = None,
    ) -> Output:
        """Predicts each next token.

        segment_ids int32[B, L]: 0 is padding, 1… are documents; default all 1.
        positions int32[B, L]: default contiguous from 0 in each document, or continuing the cache.
        cache: keys and values of earlier tokens; the output holds the cache with these appended.
        key: turns dropout on; a plain key stands for rows 0 … B - 1 (see nn/dropout.py).
        capture: names from models/trunk.py.
        prefix bool[B, L]: tokens that earlier ones of their document may see too (prefix LM,
        Raffel et al. 2020 §3.2.1).
        """
        hidden_BLD, cache, captured = self.run(
            tokens_BL,
            segment_ids,
            positions,
            prefix_BL=prefix,
            cache=cache,
            key=RowKey.of(key, tokens_BL.shape[0]),
            capture=capture,
        )
        segments_BL = jnp.ones_like(tokens_BL) if segment_ids is None else segment_ids
        routing = captured.pop("routing", None)
        losses = routing_losses(self.config.moe, routing, segments_BL)
        return Output(self.readout(hidden_BLD), hidden_BLD, cache, losses, captured, routing)

    def readout(self, hidden: jax.Array) -> jax.Array:
        """Logits float32[..., V] of hidden states [..., D]."""
        assert self.embedding is not None
        return self.head(hidden, self.embedding)
