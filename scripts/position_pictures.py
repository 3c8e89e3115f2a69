"""Draws the pictures of docs/positions.md: python -m scripts.position_pictures [OUT]

What is drawn comes from the encodings themselves: their hooks, with the parameters they start from.
"""

import io
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from jaxformer.nn.positions import Rope
from jaxformer.nn.positions.logn import scale_queries
from jaxformer.nn.positions.scaling import SCALINGS, dynamic_stretch
from jaxformer.nn.positions.t5 import buckets
from jaxformer.nn.positions.xpos import zetas
from scripts.drawing import (
    COLOURS,
    FACTOR,
    TRAINED,
    below,
    biases,
    config,
    encoding,
    figure,
    likeness,
)

OUT = Path(__file__).resolve().parent.parent / "docs" / "positions"


def draw_none() -> Figure:
    fig, (ax,) = figure(["equal logits in a causal layer"], "position of the query", ["weight"])
    at = np.arange(32)
    ax.plot(at, 1 / (at + 1), label="of each visible token: 1 / (i + 1)")
    ax.legend()
    return fig


def draw_sinusoidal() -> Figure:
    titles = ["sines of four of 256 pairs", "product of two positions' vectors"]
    fig, (left, right) = figure(titles, "position", ["added to the embedding", "p(i) · p(j) / 256"])
    at = jnp.arange(128)
    table = np.asarray(encoding("sinusoidal").embed(jnp.zeros((1, 128, 512)), at[None]))[0]
    for n in (0, 60, 120, 180):
        left.plot(at, table[:, n], label=f"m = {n // 2}")
    right.plot(at, table @ table[0] / 256)
    right.set_xlabel("distance i - j")
    below(left)
    return fig


def draw_learned() -> Figure:
    fig, (ax,) = figure(
        ["the table before training"], "distance i - j", ["cosine of p(i) and p(j)"]
    )
    at = jnp.arange(TRAINED)[None]
    table = np.asarray(encoding("learned").embed(jnp.zeros((1, TRAINED, 512)), at))[0]
    table = table / np.linalg.norm(table, axis=1, keepdims=True)
    ax.plot(range(64), (table[:192] @ table[100]).take(range(100, 164)), label="i = 100")
    ax.legend()
    return fig


def draw_rope() -> Figure:
    titles = ["pairs of a head of 64 dimensions", "mean over all dimensions"]
    fig, (left, right) = figure(titles, "distance i - j", ["cos of the angle between q and k"])
    near, far = np.arange(65), np.arange(513)
    of = encoding("rope")
    assert isinstance(of, Rope)
    angles = np.asarray(of.angles(jnp.asarray(near)[None], jnp.full((1, 65), 65)))[0]
    for m in (0, 8, 12, 16):
        left.plot(near, np.cos(angles[:, m]), label=f"m = {m}")
    for share in (1.0, 0.25):
        label = f"fraction {share:g}"
        right.plot(far, likeness(encoding("rope", {"rope.fraction": share}), far), label=label)
    below(left)
    right.legend(fontsize=8, loc="lower left")
    right.set_ylim(-0.2, 1.05)
    return fig


def draw_p_rope() -> Figure:
    titles = ["frequencies of a head of 64 dimensions", "mean over all dimensions"]
    labels = ["turn a token (radians)", "cos of the angle"]
    fig, (left, right) = figure(titles, "pair m", labels)
    far = np.arange(513)
    for width, keep in ((5, 1.0), (3, 0.5), (1, 0.25)):
        cfg = config("rope", {"rope.keep": keep})
        w = SCALINGS["none"](cfg.position.rope, 64, TRAINED)
        kept = np.where(np.arange(32) < keep * 32, w, np.nan)
        left.plot(kept, linewidth=width, linestyle="-", label=f"keep {keep:g}")
        right.plot(
            far, likeness(encoding("rope", {"rope.keep": keep}), far), label=f"keep {keep:g}"
        )
    left.set_yscale("log")
    right.set_xlabel("distance i - j")
    left.legend(fontsize=8)
    right.legend(fontsize=8, loc="upper right", ncols=3)
    right.set_ylim(-0.05, 1.15)
    return fig


def scaled(kind: str) -> dict[str, Any]:
    """The changes for a scaling from TRAINED to FACTOR times as many tokens."""
    factor = {} if kind == "dynamic_ntk" else {"rope.scaling.factor": float(FACTOR)}
    return {"rope.scaling.kind": kind} | factor


def draw_scalings() -> Figure:
    kinds = [kind for kind in SCALINGS if kind != "none"]
    fig, axes = figure(kinds, "pair m", ["frequency / RoPE's"], rows=2)
    for ax, kind in zip(axes, kinds, strict=True):
        cfg = config("rope", scaled(kind))
        rope = (cfg.position.rope, 64, TRAINED)
        ratio = SCALINGS[kind](*rope) / SCALINGS["none"](*rope)
        stretch = dynamic_stretch(*rope, jnp.array([[FACTOR * TRAINED]]))
        if stretch is not None:
            ax.plot(ratio, label=f"up to L = {TRAINED} tokens")
            ratio = np.asarray(stretch)[0, 0]
        ax.plot(ratio, label=f"at {FACTOR} L tokens" if stretch is not None else f"factor {FACTOR}")
        ax.axhline(1 / FACTOR, color=COLOURS[-1], linestyle=":", linewidth=1)
        ax.set_ylim(0, 1.08)
        ax.legend(fontsize=8, loc="lower left")
    return fig


def draw_alibi() -> Figure:
    fig, (ax,) = figure(["8 heads"], "distance |i - j|", ["bias"])
    far = np.arange(65)
    for h, bias in enumerate(biases(encoding("alibi"), far)[:6]):
        ax.plot(far, bias, label=f"head {h + 1}")
    ax.set_ylim(-26, 0.5)
    ax.legend(fontsize=8, ncols=3, loc="lower center")
    return fig


def draw_t5() -> Figure:
    titles = ["32 buckets, causal", "32 buckets, in an encoder", "biases before training"]
    fig, axes = figure(titles, "distance i - j", ["bucket", "bucket", "bias"])
    far = np.arange(-160, 161)
    section = config("t5", {}).position.t5
    for ax, causal in zip(axes, (True, False), strict=False):
        ax.step(far, buckets(far, section, causal), where="mid", linestyle="-")
    for h, bias in enumerate(biases(encoding("t5"), far[160:])[:3]):
        axes[2].step(far[160:], bias, where="mid", label=f"head {h + 1}")
    axes[2].legend(fontsize=8)
    return fig


def draw_kerple() -> Figure:
    titles = ["kerple_log", "kerple_power"]
    fig, axes = figure(titles, "distance |i - j|", ["bias"])
    far = np.arange(129)
    for ax, kind in zip(axes, titles, strict=True):
        of: Any = encoding(kind)
        drawn = list(zip(of.r1[...][:4], of.r2[...][:4], biases(of, far), strict=False))
        for r1, r2, bias in drawn:
            ax.plot(far, bias, label=f"r1 = {r1:.2f}, r2 = {r2:.2f}")
        ax.set_ylim(-20.5, 0.5)
        ax.legend(fontsize=8, loc="center right")
    return fig


def draw_fire() -> Figure:
    fig, axes = figure(["one head before training", "what the network is given"],
                       "distance i - j", ["bias", "ψ(i - j) / ψ(max(T, i))"])  # fmt: skip
    of: Any = encoding("fire")
    for query in (256, 512, 2048):
        near = np.arange(0, query + 1, 8)
        axes[0].plot(near, biases(of, near, query)[0], label=f"query at i = {query}")
        ids = jnp.array([[query]]), jnp.asarray(query - near)[None]
        axes[1].plot(near, np.asarray(of.interpolated(*ids))[0, 0], label=f"i = {query}")
    for ax in axes:
        ax.legend(fontsize=8)
    return fig


def draw_xpos() -> Figure:
    titles = ["ζ^(Δ / 512) of pairs of a head of 64", "mean over all dimensions"]
    labels = ["what is left of a product", "product of ones"]
    fig, (left, right) = figure(titles, "distance i - j", labels)
    far, section = np.arange(0, 2049, 4), config("xpos", {}).position.xpos
    of_pairs = zetas(64, section)
    for m in (0, 8, 16, 31):
        left.plot(far, of_pairs[m] ** (far / section.scale_base), label=f"m = {m}")
    for kind in ("xpos", "rope"):
        right.plot(far, likeness(encoding(kind), far), label=kind)
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    return fig


def draw_hard_alibi() -> Figure:
    titles = [f"head {h} of 8" for h in (1, 3, 5)]
    fig, axes = figure(titles, "position of the key", ["position of the query", ""])
    at = jnp.arange(12)[None]
    seen_BHLS = encoding("hard_alibi").allow(at, at)
    assert seen_BHLS is not None
    for ax, h in zip(axes, (1, 3, 5), strict=True):
        ax.imshow(np.tril(np.asarray(seen_BHLS)[0, h - 1]), cmap="Blues", vmin=0, vmax=1.4)
        ax.grid(False)
    return fig


def draw_sandwich() -> Figure:
    fig, (near, far) = figure(["8 heads", "the same, farther"], "distance i - j", ["bias"])
    of = encoding("sandwich")
    for ax, distances in ((near, np.arange(65)), (far, np.arange(0, 4097, 16))):
        for h, bias in enumerate(biases(of, distances), 1):
            if h in (1, 2, 4, 8):
                ax.plot(distances, bias, label=f"head {h}")
        ax.legend(fontsize=8)
    return fig


def draw_shaw() -> Figure:
    fig, (ax,) = figure(
        ["three queries, before training"], "distance i - j", ["added to the logit"]
    )
    far, of = np.arange(33), encoding("shaw")
    q_BLHK = jax.random.normal(jax.random.key(1), (1, 1, 3, 64))
    nothing = jnp.zeros((1, 3, 1, 33))
    ids = jnp.array([[32]]), jnp.asarray(32 - far)[None]
    score_BHLS = of.score(q_BLHK, nothing, nothing == 0, *ids)
    assert score_BHLS is not None
    for score_S in np.asarray(score_BHLS)[0, :, 0]:
        ax.plot(far, score_S)
    ax.axvline(16, color=COLOURS[-2], linestyle=":", linewidth=1)
    return fig


def draw_cope() -> Figure:
    fig, (ax,) = figure(["keys of one query"], "distance i - j", ["position p"])
    far = np.arange(65)
    of: Any = encoding("cope")
    gates = {
        "every key counts ½": np.full(65, 0.5),
        "every key counts": np.ones(65),
        "one of eight counts": (far % 8 == 4) * 0.98 + 0.01,
    }
    for label, gate in gates.items():
        gates_BHLS = jnp.asarray(gate[::-1].copy(), jnp.float32)[None, None, None]
        ax.plot(far, np.asarray(of.count(gates_BHLS, None, None))[0, 0, 0][::-1], label=label)
    ax.legend(fontsize=8)
    return fig


def draw_logn() -> Figure:
    fig, (ax,) = figure([f"logn_length {TRAINED}"], "tokens up to the query, n", ["factor of q"])
    at = jnp.arange(FACTOR * TRAINED)[None]
    ones_BLHK = jnp.ones((*at.shape, 1, 1))
    grown = scale_queries(ones_BLHK, at, at + 1, TRAINED, True)
    ax.plot(at[0] + 1, np.asarray(grown)[0, :, 0, 0])
    ax.axvline(TRAINED, color=COLOURS[-2], linestyle=":", linewidth=1)
    return fig


PICTURES = {
    "none": draw_none,
    "sinusoidal": draw_sinusoidal,
    "learned": draw_learned,
    "rope": draw_rope,
    "p_rope": draw_p_rope,
    "rope_scalings": draw_scalings,
    "xpos": draw_xpos,
    "alibi": draw_alibi,
    "hard_alibi": draw_hard_alibi,
    "t5": draw_t5,
    "kerple": draw_kerple,
    "fire": draw_fire,
    "sandwich": draw_sandwich,
    "shaw": draw_shaw,
    "cope": draw_cope,
    "logn": draw_logn,
}


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", dpi=100)
        image = Image.open(buffer).convert("RGB").quantize(64)  # a fifth of the bytes
        image.save(out / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]) if sys.argv[1:] else OUT)
