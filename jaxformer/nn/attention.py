"""Multi-head attention with grouped key/value heads; Vaswani et al. 2017 §3.2, Ainslie 2023."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.cache import LayerCache
from jaxformer.nn.context import Context
from jaxformer.nn.kernels import reference
from jaxformer.nn.linear import Linear


class SelfAttention(nnx.Module):
    """Projects to queries, keys and values, attends, projects back to the model's width."""

    def __init__(
        self,
        cfg: ModelConfig,
        initializer: parameters.Initializer,
        output_initializer: parameters.Initializer,
        dtype: jnp.dtype,
    ):
        self.num_heads, self.kv_heads = cfg.num_heads, cfg.kv_heads
        self.head_width, self.dropout_rate = cfg.head_width, cfg.dropout.attention
        inner = cfg.num_heads * cfg.head_width

        def linear(n_in: int, n_out: int, init: parameters.Initializer = initializer) -> Linear:
            return Linear(n_in, n_out, bias=cfg.attention_bias, initializer=init, dtype=dtype)

        self.query = linear(cfg.d_model, inner)
        self.key = linear(cfg.d_model, cfg.kv_heads * cfg.head_width)
        self.value = linear(cfg.d_model, cfg.kv_heads * cfg.head_width)
        self.output = linear(inner, cfg.d_model, output_initializer)

    def __call__(
        self,
        x_BLD: jax.Array,
        context: Context,
        layer: jax.Array | int,
        cache: LayerCache | None,
        cache_index: jax.Array | None = None,
    ) -> tuple[jax.Array, LayerCache | None, jax.Array]:
        """Returns outputs [B, L, D], the cache with the new keys, and weights [B, H, L, S].

        `cache_index` selects the layer of a stacked cache.
        """
        B, L = x_BLD.shape[:2]
        q_BLHK = self.query(x_BLD).reshape(B, L, self.num_heads, self.head_width)
        k_BLGK = self.key(x_BLD).reshape(B, L, self.kv_heads, self.head_width)
        v_BLGK = self.value(x_BLD).reshape(B, L, self.kv_heads, self.head_width)
        q_BLHK, k_BLGK = context.encoding.rotate(q_BLHK, k_BLGK, context.q_positions_BL)
        if cache is None:
            k_BSGK, v_BSGK = k_BLGK, v_BLGK
        else:
            assert context.slots_BL is not None
            cache = cache.write(context.slots_BL, k_BLGK, v_BLGK, cache_index)
            k_BSGK, v_BSGK = (a.astype(q_BLHK.dtype) for a in cache.read(cache_index))
        out_BLHK, weights_BHLS = reference.attend(
            q_BLHK, k_BSGK, v_BSGK, context, dropout_rate=self.dropout_rate, layer=layer
        )
        return self.output(out_BLHK.reshape(B, L, -1)), cache, weights_BHLS
