"""An LSTM language model, the baseline: trained, evaluated and continued like a decoder."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.models.heads import VocabularyHead
from jaxformer.models.output import Output
from jaxformer.models.trunk import make_embedding
from jaxformer.nn.dropout import RowKey, dropout
from jaxformer.nn.recurrent import LstmLayer, State, init_state
from jaxformer.sharding import constrain


class Lstm(nnx.Module):
    """Token embedding, layers of width d_model, head; Hochreiter & Schmidhuber 1997.

    Dropout is on what goes into the first layer (`embedding`) and out of each (`residual`), not on
    the recurrence: Zaremba et al. 2014 §3.1.
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        self.config, self.dtype = cfg, dtype
        self.embedding = make_embedding(cfg)
        self.layers = nnx.List([LstmLayer(cfg, dtype) for _ in range(cfg.num_layers)])
        self.head = VocabularyHead(cfg, dtype)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: State | None = None,
        key: RowKey | jax.Array | None = None,
        capture: Sequence[str] = (),
        prefix: jax.Array | None = None,
    ) -> Output:
        """Arguments as for `Decoder`. An LSTM reads no positions, its cache is a state, and all
        that it can capture is 'hidden_states'."""
        del positions
        if unknown := set(capture) - {"hidden_states"}:
            raise ValueError(f"an LSTM cannot capture {sorted(unknown)}")
        if prefix is not None:
            raise ValueError("an LSTM reads no token before the earlier ones: it takes no prefix")
        cfg, key = self.config, RowKey.of(key, tokens_BL.shape[0])
        segments_BL = jnp.ones_like(tokens_BL) if segment_ids is None else segment_ids
        state = init_state(cfg, tokens_BL.shape[0]) if cache is None else cache
        seen_BL = jnp.maximum(jax.lax.cummax(segments_BL, axis=1), state.segment_B[:, None])
        before_BL = jnp.concatenate([state.segment_B[:, None], seen_BL[:, :-1]], 1)
        starts_BL, real_BL = segments_BL > before_BL, segments_BL != 0
        x_BLD = self.embedding(tokens_BL)
        if cfg.scale_embeddings:
            x_BLD = x_BLD * cfg.d_model**0.5
        x_BLD = dropout(x_BLD, cfg.dropout.embedding, key, "embedding").astype(self.dtype)
        x_BLD, states, captured = constrain(x_BLD, "batch", "length", None), [], []
        for index, layer in enumerate(self.layers):
            before = state.h_NBD[index], state.c_NBD[index]
            y_BLD, *after = layer(x_BLD, starts_BL, real_BL, *before)
            x_BLD = dropout(y_BLD.astype(self.dtype), cfg.dropout.residual, key, "lstm", index)
            states.append(after)
            captured.append(x_BLD)
        h_NBD, c_NBD = (jnp.stack(x) for x in zip(*states, strict=True))
        after = State(h_NBD, c_NBD, seen_BL[:, -1])
        found = {"hidden_states": jnp.stack(captured)} if capture else {}
        logits_BLV = self.readout(x_BLD)
        return Output(logits_BLV, x_BLD, None if cache is None else after, {}, found)

    def readout(self, hidden: jax.Array) -> jax.Array:
        """Logits float32[..., V] of hidden states [..., D]."""
        return self.head(hidden, self.embedding)
