"""What must hold of a position encoding, tried within whole models of every architecture.

`properties` picks what the encoding's declarations and the architecture call for. Each takes a
subject and returns None, or its first counterexample in words.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.analysis.invariants import decoding, packing, padding, visibility
from jaxformer.analysis.subjects import (
    LENGTH,
    ROWS,
    Subject,
    differ,
    draw_normal,
    draw_words,
    make_batch,
)
from jaxformer.models import abstract_params, build, forward

FAR = 50_000  # an id that no table holds and bfloat16 cannot tell from its neighbours

Property = Callable[[Subject], str | None]


def properties(subject: Subject) -> dict[str, Property]:
    """What is to be tried, by what it says when it holds."""
    cfg, encoding = subject.cfg, subject.encoding
    causal = cfg.architecture != "encoder"
    found: dict[str, Property] = {
        "hooks keep shapes and types": hooks,
        "traces under jit, scanned, in bfloat16": traces,
        "sees earlier tokens only" if causal else "sees its whole document": visibility,
        "padding changes nothing": padding,
        "packed documents equal separate ones": packing,
    }
    if causal and encoding.cacheable:
        found["cached decoding equals the full pass"] = decoding
    if encoding.shift_invariant and not cfg.position.logn_length:
        found["a shift of ids changes nothing"] = shift
    if cfg.architecture == "decoder":
        found["no id is clamped"] = bounds
    found["gradients reach what it trains"] = training
    return found


def counterexample(holds: Property, subject: Subject) -> str | None:
    """What a property finds; what the encoding raises is found too."""
    try:
        return holds(subject)
    except Exception as error:  # whatever a user's encoding may raise
        return " ".join(f"raises {type(error).__name__}: {error}".split())[:300]


def undeclared(subject: Subject) -> list[str]:
    """What holds although the encoding does not declare it."""
    found, encoding = [], subject.encoding
    room = subject.bound - LENGTH if subject.bound else 3000
    if not encoding.shift_invariant and room > 0:
        tried = [counterexample(lambda s, n=n: shift(s, n, 1e-3), subject) for n in (1, room)]
        if tried == [None, None]:
            found.append("shift_invariant: a shift of all ids changes nothing")
    if not encoding.cacheable and counterexample(decoding, subject) is None:
        found.append("cacheable: cached decoding equals the full pass")
    return found


def hooks(subject: Subject) -> str | None:
    """Shapes; float32 biases and embeddings; rotations in float32 whatever type is rotated."""
    cfg, encoding = subject.cfg, subject.encoding
    H, G, K, D = cfg.num_heads, cfg.kv_heads, cfg.head_width, cfg.d_model
    last = (subject.bound or FAR) - 1
    q_BL, k_BS = (jnp.arange(last - n, last)[None].repeat(2, 0) for n in (3, 5))
    for name, dtype in (("bias", "float32"), ("allow", "bool")):
        out, full = getattr(encoding, name)(q_BL, k_BS), (2, H, 3, 5)
        if out is not None:
            fits = out.ndim == 4 and all(n in (1, m) for n, m in zip(out.shape, full, strict=True))
            if not fits or out.dtype != dtype:
                wanted = f"{dtype}{list(full)} or dimensions of 1"
                return f"{name} gives {_kind(out)} for 3 queries and 5 keys, not {wanted}"
    if wrong := _content_hooks(subject, q_BL, k_BS):
        return wrong
    x_BLD = jnp.asarray(draw_normal(2, 3, D))
    embedded = encoding.embed(x_BLD, q_BL)
    if _kind(embedded) != _kind(x_BLD):
        return f"embed gives {_kind(embedded)}, not {_kind(x_BLD)}"
    if bool((embedded != x_BLD).any()) != encoding.at_input:
        does = "changes nothing" if encoding.at_input else "changes the embeddings"
        return f"embed {does} while at_input = {encoding.at_input}"
    q_BLHK, k_BLGK = (jnp.asarray(draw_normal(2, 3, n, K), jnp.bfloat16) for n in (H, G))
    halves = encoding.rotate(q_BLHK, k_BLGK, q_BL, q_BL + 1)
    pair = q_BLHK.astype(jnp.float32), k_BLGK.astype(jnp.float32)
    wholes = encoding.rotate(*pair, q_BL, q_BL + 1)
    for name, x, half, whole in zip(("queries", "keys"), pair, halves, wholes, strict=True):
        for out, dtype in ((half, jnp.bfloat16), (whole, jnp.float32)):
            if _kind(out) != _kind(x.astype(dtype)):
                return f"rotate gives {name} {_kind(out)} for {_kind(x.astype(dtype))}"
        error = np.abs(np.float32(half) - whole).max() / np.abs(whole).max()
        if not error < 0.01:
            what = f"rotate of bfloat16 {name} at ids below {last} is off by {error:.2g}"
            return f"{what}: are the angles float32?"
    return None


def _content_hooks(subject: Subject, q_BL: jax.Array, k_BS: jax.Array) -> str | None:
    """Shapes and types of what depends on queries and weights, whatever type queries have."""
    H, K, encoding = subject.cfg.num_heads, subject.cfg.head_width, subject.encoding
    full = jnp.asarray(draw_normal(2, H, 3, 5))
    for dtype in (jnp.bfloat16, jnp.float32):
        q_BLHK = jnp.asarray(draw_normal(2, 3, H, K), dtype)
        score = encoding.score(q_BLHK, full, jnp.ones((2, 1, 3, 5), bool), q_BL, k_BS)
        mixed = encoding.mix(jax.nn.softmax(full), q_BL, k_BS)
        for name, out, shape in (("score", score, full.shape), ("mix", mixed, (2, 3, H, K))):
            if out is not None and _kind(out) != f"float32{list(shape)}":
                return f"{name} gives {_kind(out)}, not float32{list(shape)}"
    return None


def traces(subject: Subject) -> str | None:
    """Loss and gradient as an abstract program: hooks may not look at values."""
    cfg = subject.cfg
    cfg = dataclasses.replace(cfg, scan_layers=not cfg.layer_pattern)
    module = build(cfg, "bfloat16")
    graphdef = nnx.split(module)[0]

    def loss(params: Any, ids_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch = make_batch(ids_BL, ids_BL, ids_BL)
        logits_BLV = forward(nnx.merge(graphdef, params), batch).logits
        return logits_BLV.sum(), logits_BLV

    ids_BL = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    gradient = jax.value_and_grad(loss, has_aux=True)
    (_, logits_BLV), _ = jax.eval_shape(gradient, abstract_params(module), ids_BL)
    return None if logits_BLV.dtype == "float32" else f"logits are {logits_BLV.dtype}"


def shift(subject: Subject, by: int = 100, tolerance: float = 3e-5) -> str | None:
    """All ids plus a constant; another constant for the source. Angles are rounded to float32."""
    by = min(by, subject.bound - LENGTH) if subject.bound else by
    tokens_BL = draw_words(ROWS, LENGTH)
    ids_BL = np.arange(LENGTH, dtype=np.int32)[None].repeat(ROWS, 0)
    batch = make_batch(tokens_BL, np.ones_like(tokens_BL), ids_BL)
    shifted: dict[str, Any] = batch | {
        "positions": ids_BL + by,
        "source_positions": ids_BL + by // 3,
    }
    with jax.disable_jit(subject.cfg.scan_layers):
        here, there = (np.asarray(forward(subject.model, x).logits) for x in (batch, shifted))
    return differ(f"shifted by {by}", there, here, tolerance)


def bounds(subject: Subject) -> str | None:
    """Ids below the bound give numbers, others NaN or an error; without a bound all give numbers.

    Vectors that are added to embeddings differ at any two of some ids beyond max_length.
    """
    bound, tokens_BL = subject.bound, draw_words(ROWS, LENGTH)
    if bound and bound < LENGTH:
        return f"bound is {bound} where max_length is {subject.cfg.max_length}"
    last_L = np.arange(LENGTH, dtype=np.int32) + ((bound or FAR) - LENGTH)
    ids_BL = np.array([last_L, last_L, np.arange(LENGTH), np.arange(LENGTH)], np.int32)
    ids_BL[3, 6:] = last_L[6:]
    wrong = np.argwhere(~np.isfinite(subject.logits(tokens_BL, None, ids_BL)).all(-1))
    if wrong.size:
        return f"id {ids_BL[tuple(wrong[0])]} gives NaN, bound is {bound}"
    if not bound:
        at_BL = subject.cfg.max_length + jnp.array([[-1, 0, 1, FAR]])
        nothing_BLD = jnp.zeros((1, 4, subject.cfg.d_model))
        added_LD = np.asarray(subject.encoding.embed(nothing_BLD, at_BL))[0]
        equal = np.flatnonzero((added_LD[1:] == added_LD[:-1]).all(1) & added_LD[1:].any(1))
        if equal.size:
            pair = f"ids {at_BL[0, equal[0]]} and {at_BL[0, equal[0] + 1]}"
            return f"{pair} are embedded alike: is a table clamped? Then declare its bound"
        return None
    for beyond in (bound, bound + 5):
        ids_BL[:, -1] = beyond
        try:
            logits_BLV = subject.logits(tokens_BL, None, ids_BL)
        except (ValueError, IndexError):
            continue
        if not np.isnan(logits_BLV[:, -1]).all():
            return f"id {beyond} gives numbers, bound is {bound}: is a table clamped?"
    return None


def training(subject: Subject) -> str | None:
    """Some finite gradient other than 0 in every parameter of the encoding, if it has any."""
    flat, declared = flatten_dict(subject.params), subject.encoding.trained
    own = {path: x for path, x in flat.items() if "position" in path}
    names = {path: "/".join(map(str, path)) for path in own}
    if bool(own) != declared:
        has = f"has {', '.join(names.values())}" if own else "has no parameters"
        return f"{has} while trained = {declared}"
    tokens_BL = draw_words(ROWS, LENGTH)
    weights_BLV = draw_normal(ROWS, LENGTH, subject.cfg.vocab_size)

    def loss(own: Mapping[Any, jax.Array]) -> jax.Array:
        changed = dataclasses.replace(subject, params=unflatten_dict(flat | dict(own)))
        return (changed.run(tokens_BL).logits * weights_BLV).sum()

    for path, gradient in jax.grad(loss)(own).items() if own else ():
        if not np.isfinite(gradient).all():
            return f"the gradient of {names[path]} is not finite"
        if not np.any(gradient):
            return f"no gradient reaches {names[path]}"
    return None


def _kind(x: jax.Array) -> str:
    return f"{x.dtype}{list(x.shape)}"
