"""Splash attention, the Pallas kernel for TPUs that comes with JAX.

Causality and windows are counted in places of the row, which skips blocks before anything runs;
segment ids keep documents apart. Where padding stands within a document, places are not distances
and a window would reach too far: such a batch is left to the blockwise kernel, which the device
finds out when it runs.
"""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.nn import masks
from jaxformer.nn.kernels import blockwise
from jaxformer.nn.kernels.rule import Rule

LANES = 128
BLOCK = 512  # queries and keys at a time, at most


def attend(
    q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule, prepared: Any
) -> jax.Array:
    """Outputs [B, L, H, K]; lengths and head widths are padded to multiples of 128."""
    run = functools.partial(_attend, q_BLHK, k_BSGK, v_BSGK, rule, prepared)
    if not rule.visibility.window:
        return run()
    gaps = masks.has_gaps(rule.visibility.k_segment_ids_BS)
    slow = functools.partial(blockwise.attend, q_BLHK, k_BSGK, v_BSGK, rule, by_row=False)
    return jax.lax.cond(gaps, slow, run)


def prepare(
    rule: Rule,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    shards: int = 1,
    *,
    interpret: bool = False,
) -> Any:
    """The kernel for queries [B, L, H, K], as a tree whose arrays say which blocks meet.

    `shards` is the number of stretches that queries are cut into along their length; `interpret`
    lets it run without a TPU, slowly.
    """
    pallas, view = _pallas(), rule.visibility
    shape = _even(q_shape[1]), _even(k_shape[1])
    if view.window:
        near = view.window - 1
        mask = pallas.LocalMask(shape, (near, 0 if view.causal else near), 0)
    else:
        mask = pallas.CausalMask(shape) if view.causal else pallas.FullMask(shape)
    q, k = _block(shape[0] // shards), _block(shape[1])
    sizes = pallas.BlockSizes(
        block_q=q,
        block_kv=k,
        block_kv_compute=k,
        block_q_dkv=q,
        block_kv_dkv=k,
        block_kv_dkv_compute=k,
        block_q_dq=q,
        block_kv_dq=k,
    )
    return pallas.make_splash_mha(
        pallas.MultiHeadMask([mask] * q_shape[2]),
        block_sizes=sizes,
        attn_logits_soft_cap=rule.softcap or None,
        head_shards=1,
        q_seq_shards=shards,
        interpret=interpret,
    )


def _attend(
    q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule, prepared: Any
) -> jax.Array:
    view, (B, L, _, K) = rule.visibility, q_BLHK.shape

    def heads_first(x_BLHK: jax.Array) -> jax.Array:
        width = ((0, 0), (0, _even(x_BLHK.shape[1]) - x_BLHK.shape[1]), (0, 0), (0, -K % LANES))
        return jnp.pad(x_BLHK, width).transpose(0, 2, 1, 3)

    def segments(ids: jax.Array) -> jax.Array:
        length = ids.shape[1]
        return jnp.pad(jnp.broadcast_to(ids, (B, length)), ((0, 0), (0, _even(length) - length)))

    q_BLHK = (q_BLHK * rule.scale).astype(q_BLHK.dtype)
    ids = segments(view.q_segment_ids_BL), segments(view.k_segment_ids_BS)
    sink_H = None if rule.sink_H is None else rule.sink_H.astype(jnp.float32)

    def row(q, k, v, *ids):
        return prepared(q, k, v, _pallas().SegmentIds(*ids), sink_H)

    out = jax.vmap(row)(heads_first(q_BLHK), heads_first(k_BSGK), heads_first(v_BSGK), *ids)
    out_BLHK = out.transpose(0, 2, 1, 3)[:, :L, :, :K]
    # Padding has a segment id too, 0, and meets itself there.
    return jnp.where(masks.sees_any(view)[..., None, None], out_BLHK, 0).astype(q_BLHK.dtype)


def _pallas() -> Any:
    """Imported where it is used: it takes a second, and only TPUs need it."""
    return importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")


def _even(length: int) -> int:
    return -(-length // LANES) * LANES


def _block(length: int) -> int:
    """The largest multiple of 128 up to BLOCK that divides the length."""
    return next(size for size in range(BLOCK, 0, -LANES) if length % size == 0)
