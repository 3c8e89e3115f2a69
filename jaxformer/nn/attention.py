"""Multi-head attention; Vaswani et al. 2017 §3.2, grouped heads after Ainslie et al. 2023."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import LayerSpec, ModelConfig
from jaxformer.nn import kernels, parameters
from jaxformer.nn.cache import LayerCache, Places, append
from jaxformer.nn.context import Context
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import RMSNorm
from jaxformer.nn.platform import head_dtype
from jaxformer.nn.positions.logn import scale_queries
from jaxformer.sharding import constrain


class Attention(nnx.Module):
    """The projections that self- and cross-attention share, and what their configs say."""

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        self.num_heads, self.kv_heads = cfg.num_heads, cfg.kv_heads
        self.head_width, self.dropout_rate = cfg.head_width, cfg.dropout.attention
        self.scale = cfg.head_width**-0.5 if cfg.scale_attention else 1.0
        self.softcap, self.kernel = cfg.attention_softcap, cfg.attention_kernel
        inner, inner_kv = cfg.num_heads * cfg.head_width, cfg.kv_heads * cfg.head_width
        init = parameters.scheme(cfg)

        def linear(n_in: int, n_out: int, initializer: parameters.Initializer) -> Linear:
            return Linear(
                n_in, n_out, bias=cfg.attention_bias, initializer=initializer, dtype=dtype
            )

        self.query = linear(cfg.d_model, inner, init.query)
        self.key = linear(cfg.d_model, inner_kv, init.kernel)
        self.value = linear(cfg.d_model, inner_kv, init.kernel)
        self.output = Linear(
            inner,
            cfg.d_model,
            bias=cfg.attention_output_bias,
            initializer=init.residual,
            dtype=dtype,
        )
        self.query_norm = RMSNorm(cfg.head_width, cfg) if cfg.qk_norm else None
        self.key_norm = RMSNorm(cfg.head_width, cfg) if cfg.qk_norm else None
        sink = cfg.attention_sink
        self.sink = parameters.declare((cfg.num_heads,), parameters.zeros) if sink else None

    def queries(self, x_BLD: jax.Array) -> jax.Array:
        """[B, L, H, K], normed where the config asks for it (Henry et al. 2020, per head)."""
        q_BLHK = self.query(x_BLD).reshape(*x_BLD.shape[:2], self.num_heads, self.head_width)
        q_BLHK = constrain(q_BLHK, "batch", "length", "heads", None)
        return q_BLHK if self.query_norm is None else self.query_norm(q_BLHK)

    def keys_values(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, S, G, K].

        On a mesh they are gathered along S, so that each device has all keys for its queries, and
        are whole where the heads G are too few to be shared out.
        """
        shape = (*x_BSD.shape[:2], self.kv_heads, self.head_width)
        k_BSGK, v_BSGK = (
            constrain(linear(x_BSD).reshape(shape), "batch", None, "kv_heads", None)
            for linear in (self.key, self.value)
        )
        return k_BSGK if self.key_norm is None else self.key_norm(k_BSGK), v_BSGK

    def attend(
        self, q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule
    ) -> tuple[jax.Array, jax.Array | None]:
        """Outputs [B, L, D] and, by the reference kernel, weights [B, H, L, S]."""
        sink_H = None if self.sink is None else self.sink[...]
        rule = dataclasses.replace(
            rule, softcap=self.softcap, sink_H=sink_H, dropout_rate=self.dropout_rate
        )
        dtype = head_dtype(q_BLHK.dtype)
        q_BLHK, k_BSGK, v_BSGK = (x.astype(dtype) for x in (q_BLHK, k_BSGK, v_BSGK))
        out_BLHK, weights_BHLS = kernels.attend(self.kernel, q_BLHK, k_BSGK, v_BSGK, rule)
        return self.output(out_BLHK.reshape(*out_BLHK.shape[:2], -1)), weights_BHLS


class SelfAttention(Attention):
    """Every token attends to its own sequence, through the cache when there is one."""

    def __init__(self, cfg: ModelConfig, spec: LayerSpec, dtype: jnp.dtype):
        super().__init__(cfg, dtype)
        self.spec, self.logn_length = spec, cfg.position.logn_length

    def __call__(
        self,
        x_BLD: jax.Array,
        context: Context,
        layer: jax.Array | int,
        cache: LayerCache | None,
        cache_index: jax.Array | None = None,
    ) -> tuple[jax.Array, LayerCache | None, jax.Array | None]:
        """Returns outputs [B, L, D], the cache with the new keys, and weights [B, H, L, S].

        `cache_index` selects the layer of a stacked cache.
        """
        encoding = context.encodings[self.spec.position]
        q_BLHK, (k_BSGK, v_BSGK) = self.queries(x_BLD), self.keys_values(x_BLD)
        places = context.q_positions_BL, context.extents_BL
        q_BLHK, k_BSGK = encoding.rotate(q_BLHK, k_BSGK, *places)
        q_BLHK = scale_queries(q_BLHK, *places, self.logn_length, context.visibility.causal)
        view, k_positions_BS = context.visibility, context.k_positions_BS
        if cache is not None:
            cache, k_BSGK, v_BSGK, kept = self._append(cache, k_BSGK, v_BSGK, context, cache_index)
            k_positions_BS = kept.positions
            view = dataclasses.replace(
                view,
                k_order_BS=kept.order,
                k_segment_ids_BS=kept.segment_ids,
                k_prefix_BS=kept.prefix,
            )
        rule = Rule(
            dataclasses.replace(view, window=self.spec.window),
            self.scale,
            encoding=encoding,
            q_positions_BL=context.q_positions_BL,
            k_positions_BS=k_positions_BS,
            key=context.key,
            layer=layer,
            captures="attention_weights" in context.capture,
        )
        out_BLD, weights_BHLS = self.attend(q_BLHK, k_BSGK, v_BSGK, rule)
        return out_BLD, cache, weights_BHLS

    def _append(
        self,
        cache: LayerCache,
        k_BLGK: jax.Array,
        v_BLGK: jax.Array,
        context: Context,
        cache_index: jax.Array | None,
    ) -> tuple[LayerCache, jax.Array, jax.Array, Places]:
        """The cache with the new tokens; keys, values and places of what they may look at."""
        assert context.slots_BL is not None
        assert context.lengths_B is not None
        view, new_prefix_BL = context.visibility, None
        if view.k_prefix_BS is not None:
            new_prefix_BL = jnp.take_along_axis(view.k_prefix_BS, context.slots_BL, 1, mode="clip")
        new = Places(context.slots_BL, view.q_segment_ids_BL, context.q_positions_BL, new_prefix_BL)
        kept = Places(
            view.k_order_BS, view.k_segment_ids_BS, context.k_positions_BS, view.k_prefix_BS
        )
        return append(cache, k_BLGK, v_BLGK, new, kept, context.lengths_B, cache_index)


class CrossAttention(Attention):
    """Target tokens attend to the source; no position encoding, as in Raffel et al. 2020 §2.1."""

    def __call__(
        self,
        x_BLD: jax.Array,
        context: Context,
        layer: jax.Array | int,
        cache: LayerCache | None,
        cache_index: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns outputs [B, L, D] and weights [B, H, L, S]; `cache` holds source K and V."""
        source = context.source
        assert source is not None
        if cache is None:
            assert source.hidden_BSD is not None
            k_BSGK, v_BSGK = self.keys_values(source.hidden_BSD)
        else:
            k_BSGK, v_BSGK = cache.read(cache_index)
        rule = Rule(
            source.visibility,
            self.scale,
            key=context.key,
            site="cross_attention_weights",
            layer=layer,
            captures="cross_attention_weights" in context.capture,
        )
        return self.attend(self.queries(x_BLD), k_BSGK, v_BSGK, rule)
