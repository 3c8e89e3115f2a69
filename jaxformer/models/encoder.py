"""The encoder-only Transformer: every token sees its whole sequence."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.models.heads import HEADS, VocabularyHead
from jaxformer.models.output import Output
from jaxformer.models.trunk import Trunk
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.routing import losses as routing_losses


class Encoder(Trunk):
    """Devlin et al. 2019 (BERT) when Post-LN with learned positions.

    The head says what the logits are: of the vocabulary at each token (masked language model), of
    classes at each token, or of classes for each row.
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        super().__init__(cfg, dtype, causal=False, num_layers=cfg.num_layers)
        self.head = HEADS[cfg.head.kind](cfg, dtype)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: None = None,
        key: RowKey | jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Output:
        """Arguments as for `Decoder`; an encoder has no cache.

        With `model.patches` the tokens are images float32[B, H, W, C], and L is 1 more than the
        patches of one: segment_ids and positions are [B, L], all of them the image's.

        Logits float32[B, L, V], [B, L, classes] or [B, classes], by `model.head.kind`.
        """
        if cache is not None:
            raise ValueError("an encoder has no cache: every token sees the later ones")
        key = RowKey.of(key, tokens_BL.shape[0])
        segments_BL = segment_ids
        if segments_BL is None:
            images = self.config.has_images
            shape = (len(tokens_BL), self.config.patches.length) if images else tokens_BL.shape
            segments_BL = jnp.ones(shape, jnp.int32)
        hidden_BLD, _, captured = self.run(
            tokens_BL, segments_BL, positions, key=key, capture=capture
        )
        logits = self.head(hidden_BLD, self.embedding, segments_BL, key)
        routing = captured.pop("routing", None)
        losses = routing_losses(self.config.moe, routing, segments_BL)
        return Output(logits, hidden_BLD, None, losses, captured, routing)

    def readout(self, hidden: jax.Array) -> jax.Array:
        """Logits float32[..., V] of hidden states [..., D], of a head over the vocabulary."""
        assert isinstance(self.head, VocabularyHead)
        assert self.embedding is not None
        return self.head(hidden, self.embedding)
