"""From hidden states to predictions."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.dropout import RowKey, dropout
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.linear import Embedding, Linear, Turnable, affine
from jaxformer.nn.norm import NORMS
from jaxformer.sharding import constrain


class VocabularyHead(Turnable):
    """Logits over the vocabulary: a kernel of its own, or the embedding table when tied.

    `head.transform` puts a linear layer, the activation and a norm before (BERT's masked language
    model head, Devlin et al. 2019's code); `scale_logits` divides by sqrt(D) (T5, when tied).
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        init = parameters.scheme(cfg)
        self.dtype, self.softcap, self.size = dtype, cfg.logit_softcap, cfg.vocab_size
        self.scale = cfg.d_model**-0.5 if cfg.scale_logits else 1.0
        self.activation = cfg.activation
        transform = cfg.head.transform
        self.transform = (
            Linear(cfg.d_model, cfg.d_model, bias=True, initializer=init.kernel, dtype=dtype)
            if transform
            else None
        )
        self.norm = NORMS[cfg.norm](cfg.d_model, cfg) if transform else None
        self.kernel, self.bias = nnx.data(None), nnx.data(None)
        if not cfg.tie_embeddings:
            self.kernel = parameters.declare((cfg.d_model, cfg.vocab_size), init.kernel)
        if cfg.head_bias:
            self.bias = parameters.declare((cfg.vocab_size,), parameters.zeros)

    def __call__(
        self,
        x: jax.Array,
        embedding: Embedding,
        segment_ids_BL: jax.Array | None = None,
        key: RowKey | None = None,
    ) -> jax.Array:
        """float32[..., V] from [..., D]."""
        if self.transform is not None and self.norm is not None:
            x = self.norm(ACTIVATIONS[self.activation](self.transform(x)))
        if self.kernel is None:
            kernel, turned = embedding.table[...], True  # [V, D]
        else:
            kernel, turned = self.kernel[...], self.turned
        logits = affine(x * self.scale, kernel, None, self.dtype, turned)
        logits = constrain(logits, *("batch", "length")[: x.ndim - 1], "vocab")
        logits = logits[..., : self.size]  # a mesh may have columns behind the vocabulary
        if self.bias is not None:
            logits = logits + jnp.expand_dims(self.bias[...], range(x.ndim - 1))
        return self.softcap * jnp.tanh(logits / self.softcap) if self.softcap else logits


class SequenceHead(nnx.Module):
    """Logits of classes for each row: pooled state, tanh layer, dropout, linear; Devlin 2019 §3.2.

    Pooling takes the row's first token or the mean over its non-padding tokens. Without
    `head.pooler` there is no tanh layer (ViT, Dosovitskiy et al. 2021 §3.2).
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        init = parameters.scheme(cfg).kernel
        width, classes = cfg.d_model, cfg.head.num_classes
        self.pooling, self.dropout_rate = cfg.head.pooling, cfg.dropout.residual
        self.pooler = (
            Linear(width, width, bias=True, initializer=init, dtype=dtype)
            if cfg.head.pooler
            else None
        )
        self.classifier = Linear(width, classes, bias=True, initializer=init, dtype=dtype)

    def __call__(
        self,
        x_BLD: jax.Array,
        embedding: Embedding,
        segment_ids_BL: jax.Array,
        key: RowKey | None,
    ) -> jax.Array:
        """float32[B, classes]; a row is one document, with padding on the right."""
        if self.pooling == "first":
            pooled_BD = x_BLD[:, 0]
        else:
            real_BL1 = (segment_ids_BL != 0)[..., None]
            total_BD = jnp.where(real_BL1, x_BLD, 0).astype(jnp.float32).sum(1)
            pooled_BD = total_BD / jnp.maximum(real_BL1.sum(1), 1)
        if self.pooler is not None:
            pooled_BD = jnp.tanh(self.pooler(pooled_BD))
        pooled_BD = dropout(pooled_BD, self.dropout_rate, key, "pooled")
        return self.classifier(pooled_BD).astype(jnp.float32)


class TokenHead(nnx.Module):
    """Logits of classes at each token."""

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        init, classes = parameters.scheme(cfg).kernel, cfg.head.num_classes
        self.dropout_rate = cfg.dropout.residual
        self.classifier = Linear(cfg.d_model, classes, bias=True, initializer=init, dtype=dtype)

    def __call__(
        self,
        x_BLD: jax.Array,
        embedding: Embedding,
        segment_ids_BL: jax.Array,
        key: RowKey | None,
    ) -> jax.Array:
        """float32[B, L, classes]."""
        x_BLD = dropout(x_BLD, self.dropout_rate, key, "head")
        return self.classifier(x_BLD).astype(jnp.float32)


HEADS = {"vocabulary": VocabularyHead, "sequence": SequenceHead, "token": TokenHead}
