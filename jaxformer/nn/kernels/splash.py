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
    q_BLHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    rule: Rule,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Outputs [B, L, H, K]; lengths and head widths are padded to multiples of 128.

    `interpret` runs the kernel without a TPU, slowly.
    """
    run = functools.partial(_attend, q_BLHK, k_BSGK, v_BSGK, rule, interpret)
    if not rule.visibility.window:
        return run()
    gaps = masks.has_gaps(rule.visibility.q_segment_ids_BL)
    slow = functools.partial(blockwise.attend, q_BLHK, k_BSGK, v_BSGK, rule, by_row=False)
    return jax.lax.cond(gaps, slow, run)


def _attend(
    q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule, interpret: bool
) -> jax.Array:
    view, (B, L, H, K) = rule.visibility, q_BLHK.shape
    q, k, v = (
        _padded(x, LANES).transpose(0, 2, 1, 3)
        for x in ((q_BLHK * rule.scale).astype(q_BLHK.dtype), k_BSGK, v_BSGK)
    )
    q_segments, k_segments = (
        jnp.pad(jnp.broadcast_to(ids, (B, ids.shape[1])), ((0, 0), (0, -ids.shape[1] % LANES)))
        for ids in (view.q_segment_ids_BL, view.k_segment_ids_BS)
    )
    shape = q.shape[2], k.shape[2]
    pallas = _pallas()
    kernel = pallas.make_splash_mha(
        pallas.MultiHeadMask([_mask(view, shape)] * H),
        block_sizes=_blocks(*shape),
        attn_logits_soft_cap=rule.softcap or None,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    sink_H = None if rule.sink_H is None else rule.sink_H.astype(jnp.float32)

    def row(q, k, v, q_segments_L, k_segments_S):
        return kernel(q, k, v, pallas.SegmentIds(q_segments_L, k_segments_S), sink_H)

    out = jax.vmap(row)(q, k, v, q_segments, k_segments)
    out_BLHK = out.transpose(0, 2, 1, 3)[:, :L, :, :K]
    # Padding has a segment id too, 0, and meets itself there.
    return jnp.where(masks.sees_any(view)[..., None, None], out_BLHK, 0).astype(q_BLHK.dtype)


def _pallas() -> Any:
    """Imported where it is used: it takes a second, and only TPUs need it."""
    return importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")


def _padded(x: jax.Array, step: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % step), (0, 0), (0, -x.shape[3] % LANES)))


def _mask(view: masks.Visibility, shape: tuple[int, int]) -> Any:
    pallas = _pallas()
    if view.window:
        near = view.window - 1
        return pallas.LocalMask(shape, (near, 0 if view.causal else near), 0)
    return pallas.CausalMask(shape) if view.causal else pallas.FullMask(shape)


def _blocks(q_length: int, k_length: int) -> Any:
    q, k = _block(q_length), _block(k_length)
    return _pallas().BlockSizes(
        block_q=q,
        block_kv=k,
        block_kv_compute=k,
        block_q_dkv=q,
        block_kv_dkv=k,
        block_kv_dkv_compute=k,
        block_q_dq=q,
        block_kv_dq=k,
    )


def _block(length: int) -> int:
    """The largest multiple of 128 up to BLOCK that divides the length."""
    return next(size for size in range(BLOCK, 0, -LANES) if length % size == 0)
