"""Attention block by block, in plain JAX: no weight matrix of all queries and keys in memory.

The softmax is computed online (Milakov & Gimelshein 2018), the backward pass computes the weights
again from each query's logarithm of the sum (Dao et al. 2022, FlashAttention, §3.1). Blocks of keys
that no query of a chunk may see (later, beyond the window, of other documents, padding) are left
out: the loop over them runs from the first to the last that is visible, which the data say.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.nn.kernels.blocks import Places, Plan, even, meeting, take, visible
from jaxformer.nn.kernels.rule import Rule, overrides

LOWEST = -1e30  # a finite maximum keeps a fully masked row from computing inf - inf
UNROLLED = 8  # heads that are compiled one after another: a tenth faster, slower to compile


def attend(
    q_BLHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    rule: Rule,
    *,
    chunk: int = 128,
    block: int = 128,
    by_row: bool = True,
) -> jax.Array:
    """Outputs [B, L, H, K]; has no dropout and returns no weights.

    `chunk` queries meet `block` keys at a time, at most. `by_row` takes the rows of the batch in
    turn, which is right for a CPU: products of single heads are faster there than batched ones.
    """
    B, L, H, K = q_BLHK.shape
    S, G = k_BSGK.shape[1:3]
    chunk, block = even(L, chunk), even(S, block)
    encoding, terms = None, {}
    if rule.encoding is not None and overrides(rule.encoding, "bias", "allow"):
        encoding, state = nnx.split(rule.encoding)
        terms = nnx.to_pure_dict(state)
    view = rule.visibility
    plan = Plan(chunk, block, rule.scale, rule.softcap, view.causal, view.window, encoding, by_row)

    def whole(x: Any, step: int) -> Any:
        """All rows, padded to a multiple of `step` by what is padding: zeros; None stays."""
        if x is None:
            return None
        x = jnp.broadcast_to(x, (B, x.shape[1]))
        return jnp.pad(x, ((0, 0), (0, -x.shape[1] % step)))

    places = Places(
        whole(view.q_order_BL, chunk),
        whole(view.k_order_BS, block),
        whole(view.q_segment_ids_BL, chunk),
        whole(view.k_segment_ids_BS, block),
        whole(view.k_prefix_BS, block),
        None if encoding is None else whole(rule.q_positions_BL, chunk),
        None if encoding is None else whole(rule.k_positions_BS, block),
    )
    q = jnp.pad(q_BLHK, ((0, 0), (0, -L % chunk), (0, 0), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, -S % block), (0, 0), (0, 0))) for x in (k_BSGK, v_BSGK))
    q = q.reshape(B, -1, G, H // G, K).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    sink = None if rule.sink_H is None else rule.sink_H.reshape(G, H // G)
    out: Any = _attention(plan, q, k, v, sink, terms, places)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, -1, H, K)[:, :L]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    plan: Plan, q: jax.Array, k: jax.Array, v: jax.Array, sink: Any, terms: Any, places: Places
) -> jax.Array:
    """[B, G, R, L, K] of queries of that shape and keys and values [B, G, S, K].

    The R queries of a group are the rows of one product, so that K and V are not repeated.
    """
    return _forward(plan, q, k, v, sink, terms, places)[0]


def _forward(plan, q, k, v, sink, terms, places):
    seen = visible(plan, places)
    row = functools.partial(_row_forward, plan, sink, terms)
    out, lse = _rows(plan, row, (q, k, v, places), seen)
    return out, (q, k, v, sink, terms, places, out, lse)


def _backward(plan, kept, d_out):
    q, k, v, sink, terms, places, out, lse = kept
    product = out.astype(jnp.float32) * d_out.astype(jnp.float32)
    delta = product.sum(-1)  # [B, G, R, L]
    row = functools.partial(_row_backward, plan, terms)
    seen = visible(plan, places)
    dq, dk, dv, d_terms = _rows(plan, row, (q, k, v, places, lse, delta, d_out), seen)
    d_terms = jax.tree.map(lambda x: x.sum(0), d_terms)
    d_sink = None
    if sink is not None:
        d_sink = -(jnp.exp(sink[None, ..., None] - lse) * delta).sum((0, 3))
    return dq, dk, dv, d_sink, d_terms, None


_attention.defvjp(_forward, _backward)


def _rows(plan: Plan, row: Callable, arrays: Any, seen: tuple[jax.Array, jax.Array]) -> Any:
    """Runs `row` on every row of the batch and stacks what it returns."""
    if plan.by_row:
        return jax.lax.map(lambda x: row(*x), (*arrays, seen))
    shared = seen[0].min(0), seen[1].max(0)  # of all rows: the loop's bounds stay scalars
    return jax.vmap(lambda *x: row(*x, shared))(*arrays)


def _dot(a: jax.Array, b: jax.Array, over_a: int, over_b: int) -> jax.Array:
    dims = ((over_a,), (over_b,)), ((), ())
    return jax.lax.dot_general(a, b.astype(a.dtype), dims, preferred_element_type=jnp.float32)


def _logits(plan, q_NK, k_sK, mask_ls, bias, allow):
    """float32[R, l, s], -inf where masked; and the logits before the bias, as softcap left them."""
    capped = _dot(q_NK, k_sK, 1, 1).reshape(-1, *mask_ls.shape) * plan.scale
    if plan.softcap:
        capped = plan.softcap * jnp.tanh(capped / plan.softcap)
    logits = capped if bias is None else capped + bias
    mask = mask_ls[None] if allow is None else mask_ls[None] & allow
    return jnp.where(mask, logits, -jnp.inf), capped


def _by_group(extra, groups: int, repeats: int):
    """Bias or allow [H or 1, l, s] as [G, R or 1, l, s]; None stays."""
    if extra is None:
        return None
    if extra.shape[0] == 1:
        return jnp.broadcast_to(extra[None], (groups, *extra.shape))
    return extra.reshape(groups, repeats, *extra.shape[1:])


def _row_forward(plan, sink, terms, q, k, v, places, seen):
    """Outputs [G, R, L, K] and logarithms of sums float32[G, R, L] of one row."""
    G, R, L, K = q.shape

    def chunk(i: Any) -> tuple[jax.Array, jax.Array]:
        q_GNK = take(q, i, plan.chunk, 2).reshape(G, -1, K)

        def block(j: Any, carry: Any) -> Any:
            mask, extra = meeting(plan, places, i, j)
            bias, allow = (None, None) if extra is None else extra(terms)
            bias, allow = _by_group(bias, G, R), _by_group(allow, G, R)

            def group(x: Any) -> Any:
                (high, total, out), q_NK, k_sK, v_sK, bias, allow = x
                logits, _ = _logits(plan, q_NK, k_sK, mask, bias, allow)
                logits = logits.reshape(len(q_NK), -1)
                higher = jnp.maximum(high, logits.max(-1))
                shrink, weights = jnp.exp(high - higher), jnp.exp(logits - higher[:, None])
                out = out * shrink[:, None] + _dot(weights.astype(v_sK.dtype), v_sK, 1, 0)
                return higher, total * shrink + weights.sum(-1), out

            parts = (take(x, j, plan.block, 1) for x in (k, v))
            return _groups(group, (carry, q_GNK, *parts, bias, allow))

        N = q_GNK.shape[1]
        # A sink is a key that has been seen already: exp(sink - high) = 1.
        high = jnp.full((G, N), LOWEST) if sink is None else jnp.repeat(sink, plan.chunk, axis=1)
        empty = high, jnp.full((G, N), float(sink is not None)), jnp.zeros((G, N, K))
        high, total, out = jax.lax.fori_loop(seen[0][i], seen[1][i], block, empty)
        some = jnp.where(total == 0, 1, total)
        lse = jnp.where(total == 0, 0, high + jnp.log(some))
        out = (out / some[..., None]).astype(q.dtype)
        return out.reshape(G, R, -1, K), lse.reshape(G, R, -1)

    out, lse = jax.lax.map(chunk, jnp.arange(L // plan.chunk))
    return jnp.moveaxis(out, 0, 2).reshape(q.shape), jnp.moveaxis(lse, 0, 2).reshape(G, R, L)


def _row_backward(plan, terms, q, k, v, places, lse, delta, d_out, seen):
    """Gradients of one row's q, k and v, and of the encoding's parameters."""
    G, R, L, K = q.shape
    trains = bool(jax.tree.leaves(terms))

    def chunk(carry: Any, i: Any) -> Any:
        at = (take(x, i, plan.chunk, 2) for x in (q, d_out, lse, delta))
        q_GNK, d_GNK, lse_GN, delta_GN = (x.reshape(G, -1, *x.shape[3:]) for x in at)

        def block(j: Any, carry: Any) -> Any:
            dq_GNK, dk, dv, d_terms = carry
            mask, extra = meeting(plan, places, i, j)
            bias = allow = backward = None
            if extra is not None:
                bias, backward, allow = jax.vjp(extra, terms, has_aux=True)
            shape = None if bias is None else bias.shape
            bias_G, allow_G = _by_group(bias, G, R), _by_group(allow, G, R)

            def group(x: Any) -> Any:
                q_NK, d_NK, lse_N, delta_N, k_sK, v_sK, bias, allow = x
                logits, capped = _logits(plan, q_NK, k_sK, mask, bias, allow)
                weights = jnp.exp(logits.reshape(len(q_NK), -1) - lse_N[:, None])
                d_logits = weights * (_dot(d_NK, v_sK, 1, 1) - delta_N[:, None])
                d_bias = d_logits.reshape(logits.shape) if trains else None
                if plan.softcap:
                    d_logits *= 1 - jnp.square(capped.reshape(d_logits.shape) / plan.softcap)
                d_logits = (d_logits * plan.scale).astype(k_sK.dtype)
                dv_sK = _dot(weights.astype(d_NK.dtype), d_NK, 0, 0)
                dk_sK, dq_NK = _dot(d_logits, q_NK, 0, 0), _dot(d_logits, k_sK, 1, 0)
                return dq_NK, dk_sK, dv_sK, d_bias

            parts = (take(x, j, plan.block, 1) for x in (k, v))
            xs = (q_GNK, d_GNK, lse_GN, delta_GN, *parts, bias_G, allow_G)
            dq_now, dk_now, dv_now, d_bias = _groups(group, xs)
            if trains and shape is not None and backward is not None:
                d_bias = d_bias.reshape(-1, *d_bias.shape[2:])
                over = tuple(n for n in range(3) if shape[n] == 1)
                (now,) = backward(d_bias.sum(over, keepdims=True) if over else d_bias)
                d_terms = jax.tree.map(jnp.add, d_terms, now)
            return dq_GNK + dq_now, _add(dk, dk_now, j, plan), _add(dv, dv_now, j, plan), d_terms

        empty = jnp.zeros(q_GNK.shape)
        dq_GNK, *carry = jax.lax.fori_loop(seen[0][i], seen[1][i], block, (empty, *carry))
        return tuple(carry), dq_GNK.reshape(G, R, -1, K).astype(q.dtype)

    zeros = jnp.zeros(k.shape), jnp.zeros(v.shape), jax.tree.map(jnp.zeros_like, terms)
    (dk, dv, d_terms), dq = jax.lax.scan(chunk, zeros, jnp.arange(L // plan.chunk))
    return jnp.moveaxis(dq, 0, 2).reshape(q.shape), dk.astype(k.dtype), dv.astype(v.dtype), d_terms


def _groups(group: Callable, xs: Any) -> Any:
    """Runs `group` on each of the G key/value heads."""
    count = jax.tree.leaves(xs)[0].shape[0]
    unroll = count if count <= UNROLLED else 1
    return jax.lax.scan(lambda _, x: (None, group(x)), None, xs, unroll=unroll)[1]


def _add(total: jax.Array, part: jax.Array, number: Any, plan: Plan) -> jax.Array:
    """The gradient of all keys [G, S, K] with that of one block added."""
    part = part + take(total, number, plan.block, 1)
    return jax.lax.dynamic_update_slice_in_dim(total, part, number * plan.block, 1)
