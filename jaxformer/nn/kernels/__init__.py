"""Attention kernels. `reference` is the definition; the others compute the same in other ways."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxformer.distributed import say
from jaxformer.nn import masks
from jaxformer.nn.kernels import blockwise, chunked, cudnn, reference, splash
from jaxformer.nn.kernels.rule import Rule, overrides
from jaxformer.nn.kernels.select import Case, check_kernel, choose
from jaxformer.nn.kernels.spread import share_heads, spread
from jaxformer.nn.platform import platform
from jaxformer.sharding import constrain, shards

__all__ = ["Case", "attend", "case_of", "check_kernel", "choose"]


def attend(
    kernel: str, q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule
) -> tuple[jax.Array, jax.Array | None]:
    """Outputs [B, L, H, K] by the kernel of this name or one that can; the reference's weights."""
    name, why = choose(kernel, case_of(q_BLHK, k_BSGK, rule))
    if why:
        _say_once(why)
    if name in ("reference", "chunked"):
        rule = dataclasses.replace(rule, visibility=masks.by_place(rule.visibility))
    if name == "reference":
        return reference.attend(q_BLHK, k_BSGK, v_BSGK, rule)
    return KERNELS[name](q_BLHK, k_BSGK, v_BSGK, rule), None


def _blockwise(*call: Any) -> jax.Array:
    return spread(functools.partial(blockwise.attend, by_row=platform() == "cpu"), *call)


def _splash(*call: Any) -> jax.Array:
    return spread(splash.attend, *call, step=splash.LANES, prepare=splash.prepare)


def _cudnn(q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule) -> jax.Array:
    """XLA cuts the call along rows and heads by itself, where all three are cut alike."""
    k_BSGK, v_BSGK = share_heads(q_BLHK, k_BSGK, v_BSGK)
    q_BLHK = constrain(q_BLHK, "batch", None, "heads", None)
    k_BSGK, v_BSGK = (constrain(x, "batch", None, "kv_heads", None) for x in (k_BSGK, v_BSGK))
    return cudnn.attend(q_BLHK, k_BSGK, v_BSGK, rule)


KERNELS: dict[str, Callable[..., jax.Array]] = {
    "blockwise": _blockwise,
    "chunked": chunked.attend,
    "cudnn": _cudnn,
    "splash": _splash,
}


def case_of(q_BLHK: jax.Array, k_BSGK: jax.Array, rule: Rule) -> Case:
    """What a call asks for."""
    view = rule.visibility
    asks = {
        "dropout": rule.dropout_rate > 0 and rule.key is not None,
        "captured weights": rule.captures,
        "one query": q_BLHK.shape[1] == 1,
        "bias": rule.encoding is not None and overrides(rule.encoding, "bias"),
        "allow": rule.encoding is not None and overrides(rule.encoding, "allow"),
        "bias by content": rule.encoding is not None and overrides(rule.encoding, "score", "mix"),
        "softcap": rule.softcap > 0,
        "sink": rule.sink_H is not None,
        "prefix": view.k_prefix_BS is not None,
    }
    return Case(
        platform=platform(),
        length=q_BLHK.shape[1],
        keys=k_BSGK.shape[1],
        head_width=q_BLHK.shape[-1],
        dtype=q_BLHK.dtype.name,
        causal=view.causal,
        window=view.window > 0,
        aligned=view.aligned,
        context=shards("length"),
        asks=frozenset(word for word, asked in asks.items() if asked),
    )


_say_once = functools.cache(say)
