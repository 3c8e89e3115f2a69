"""What holds of every model, whatever its options (DESIGN §5, 1-4).

A property takes a subject and returns None, or the first place where it does not hold, in words.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.analysis.subjects import (
    LENGTH,
    ROWS,
    WORDS,
    Subject,
    differ,
    draw_normal,
    draw_words,
    make_batch,
)
from jaxformer.nn.cache import init_cache


def visibility(subject: Subject) -> str | None:
    """Which tokens the state at one place of each row depends on, by gradient: exactly 0 or not."""
    cfg, places_B = subject.cfg, np.array([11, 0, 6, 8])
    tokens_BL = np.arange(WORDS, dtype=np.int32).reshape(ROWS, LENGTH)  # each stands at one place
    segments_BL = np.ones_like(tokens_BL)
    segments_BL[3] = [1] * 5 + [2] * 5 + [0] * 2
    weights_BD, flat = draw_normal(ROWS, cfg.d_model), flatten_dict(subject.params)

    def at_places(tables: Mapping[Any, jax.Array]) -> jax.Array:
        changed = dataclasses.replace(subject, params=unflatten_dict(flat | dict(tables)))
        hidden_BLD = changed.run(tokens_BL, segments_BL).hidden
        return (hidden_BLD[np.arange(ROWS), places_B] * weights_BD).sum()

    tables = {path: x for path, x in flat.items() if path[-2:] == ("embedding", "table")}
    gradients = jax.grad(at_places)(tables).values()
    size_V = np.array([np.abs(np.asarray(g)).max(1) for g in gradients]).sum(0)
    target_BL, source_BL = (size_V[n : n + WORDS].reshape(ROWS, LENGTH) for n in (0, WORDS))
    same_BL = segments_BL == segments_BL[np.arange(ROWS), places_B][:, None]
    away_BL = places_B[:, None] - np.arange(LENGTH)
    reach = cfg.num_layers * (cfg.window - 1) if cfg.window else LENGTH
    visible_BL = same_BL & (np.abs(away_BL) <= reach)
    visible_BL &= (away_BL >= 0) | (cfg.architecture == "encoder")
    cases = [("", target_BL, visible_BL)]
    if cfg.architecture == "encoder_decoder":
        cases.append((" of the source", source_BL, same_BL))
    ids_BL = jnp.arange(LENGTH)[None]
    hides = subject.encoding.allow(ids_BL, ids_BL) is not None  # some of what is visible
    for of, found_BL, visible_BL in cases:
        for b, j in np.argwhere((found_BL != 0) != visible_BL):
            if not visible_BL[b, j]:
                size = f"gradient {found_BL[b, j]:.2g}"
                return f"row {b}: token {places_B[b]} depends on token {j}{of}, {size}"
            if not hides:
                return f"row {b}: token {places_B[b]} does not depend on token {j}{of}"
    return None


def padding(subject: Subject) -> str | None:
    """Padding on the right, on the left, in between, whatever tokens it holds."""
    documents_BP = draw_words(ROWS, 6)
    plain_BPV = subject.logits(documents_BP)
    places = [range(6), range(6, 12), [0, 2, 3, 6, 7, 11], [1, 2, 4, 5, 8, 9]]
    real_BL = np.array([[i in row for i in range(LENGTH)] for row in places])
    found = []
    for filler in (0, 1):
        tokens_BL = np.full_like(real_BL, filler, np.int32)
        tokens_BL[real_BL] = documents_BP.ravel()
        logits_BLV = subject.logits(tokens_BL, real_BL.astype(np.int32))
        found.append(logits_BLV[real_BL].reshape(plain_BPV.shape))
    what = "padded on the right, left, and in between twice"
    return differ(what, found[0], plain_BPV) or differ("other padding", found[1], found[0], 0)


def packing(subject: Subject) -> str | None:
    """Row 0 packs what rows 1, 2, 3 hold alone; a changed document leaves no bit of the others."""
    lengths, start = (4, 3, 2), 1
    tokens_BL, segments_BL = np.zeros((2, ROWS, LENGTH), np.int32)
    for i, n in enumerate(lengths, 1):
        tokens_BL[i, :n] = tokens_BL[0, start : start + n] = draw_words(n, i)[:, 0]
        segments_BL[0, start : start + n], segments_BL[i, :n] = i, 1
        start += n
    logits_BLV = subject.logits(tokens_BL, segments_BL)
    for i, n in enumerate(lengths, 1):
        packed_LV, alone_LV = logits_BLV[0, segments_BL[0] == i], logits_BLV[i, :n]
        if found := differ(f"document {i} of 3, packed", packed_LV[None], alone_LV[None]):
            return found
    changed_BL = np.where(segments_BL == 2, WORDS - 1 - tokens_BL, tokens_BL)
    again_LV, is_other_L = subject.logits(changed_BL, segments_BL)[0], segments_BL[0] != 2
    others = again_LV[is_other_L][None], logits_BLV[0][is_other_L][None]
    if found := differ("after a change of document 2, documents 1 and 3", *others, 0):
        return found
    same = np.flatnonzero((again_LV == logits_BLV[0]).all(1) & ~is_other_L)
    return f"a changed document has the same logits at token {same[0]}" if same.size else None


def decoding(subject: Subject) -> str | None:
    """Ragged prefill, then a token at a time, beyond max_length unless that bounds the ids.

    Once with contiguous ids and once with gaps between them, as randomized positions have.
    """
    draws, limit = np.random.default_rng(0), min(subject.bound or 40, 40)
    ids = [np.sort(draws.permutation(limit)[:LENGTH]) for _ in range(ROWS)]
    return _decode(subject, None) or _decode(subject, np.array(ids, np.int32))


def _decode(subject: Subject, ids_BL: np.ndarray | None) -> str | None:
    tokens_BL, lengths_B = draw_words(ROWS, LENGTH), np.array([12, 10, 6, 12])
    segments_BL = (np.arange(LENGTH) < lengths_B[:, None]).astype(np.int32)
    extent_B = lengths_B
    if ids_BL is not None:
        ids_BL = np.where(segments_BL, ids_BL, 0)
        extent_B = ids_BL.max(1) + 1
    full_BLV = subject.logits(tokens_BL, segments_BL, ids_BL)
    cache = init_cache(subject.cfg, ROWS, LENGTH, extent_B=jnp.asarray(extent_B))
    decode: Any = subject.model
    if subject.cfg.architecture == "encoder_decoder":
        batch, model = make_batch(tokens_BL, segments_BL, ids_BL), decode
        names = ("source", "source_segment_ids", "source_positions")
        with jax.disable_jit(subject.cfg.scan_layers):
            hidden_BSD = model.encode(*(batch[name] for name in names))
            cache = model.attach(cache, hidden_BSD, jnp.asarray(segments_BL))
        decode = model.decode
    at_B, counts_B, width = np.zeros(ROWS, int), np.array([9, 7, 3, 10]), LENGTH
    while counts_B.any():
        fed_BL, fed_segments_BL, fed_ids_BL = np.zeros((3, ROWS, width), np.int32)
        for b, (at, n) in enumerate(zip(at_B, counts_B, strict=True)):
            place = (
                slice(width - n, width) if b % 2 else slice(0, n)
            )  # odd rows: padded on the left
            fed_BL[b, place], fed_segments_BL[b, place] = tokens_BL[b, at : at + n], 1
            fed_ids_BL[b, place] = 0 if ids_BL is None else ids_BL[b, at : at + n]
        with jax.disable_jit(subject.cfg.scan_layers):
            given_BL = None if ids_BL is None else fed_ids_BL
            out = decode(fed_BL, fed_segments_BL, given_BL, cache)
        cache, logits_BLV = out.cache, np.asarray(out.logits)
        what = "prefill" if width > 1 else "decoding"
        what += "" if ids_BL is None else f" at ids {ids_BL[0, :3].tolist()}…"
        for b, (at, n) in enumerate(zip(at_B, counts_B, strict=True)):
            now_LV, then_LV = logits_BLV[b, fed_segments_BL[b] != 0], full_BLV[b, at : at + n]
            if found := differ(what, now_LV[None], then_LV[None], row=b, token=at):
                return found
        at_B, width = at_B + counts_B, 1
        counts_B = (at_B < lengths_B).astype(int)
    return None
