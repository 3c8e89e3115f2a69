"""A decoder in NumPy float64, written from the papers and sharing no code with jaxformer."""

import math

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_exact": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
PAIRS = np.s_[0::2], np.s_[1::2]
GATES = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu"}


def linear(p, x):
    return x @ np.float64(p["kernel"]) + (np.float64(p["bias"]) if "bias" in p else 0)


def norm(cfg, p, x):
    if cfg.norm == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + cfg.norm_epsilon)
    return x * np.float64(p["scale"]) + (np.float64(p["bias"]) if "bias" in p else 0)


def angles(positions, width, base):
    return np.array([[t * base ** (-2 * m / width) for m in range(width // 2)] for t in positions])


def sinusoid(cfg, positions):
    section, out = cfg.position.sinusoidal, np.zeros((len(positions), cfg.d_model))
    angle = angles(positions, cfg.d_model, section.base)
    split = section.layout == "concatenated"
    sines, cosines = (np.s_[: cfg.d_model // 2], np.s_[cfg.d_model // 2 :]) if split else PAIRS
    out[:, sines], out[:, cosines] = np.sin(angle), np.cos(angle)
    return section.scale * out


def rotate(cfg, x, positions):
    """x [L, K] of one head, each pair seen as a complex number."""
    section, width = cfg.position.rope, round(cfg.position.rope.fraction * cfg.head_width)
    first, second = np.s_[0:width:2], np.s_[1:width:2]
    if section.layout == "half":
        first, second = np.s_[: width // 2], np.s_[width // 2 : width]
    turn = np.exp(1j * angles(positions, width, section.base))
    z, out = (x[:, first] + 1j * x[:, second]) * turn, x.copy()
    out[:, first], out[:, second] = z.real, z.imag
    return out


def attention(cfg, p, x, positions, documents):
    K, share = cfg.head_width, cfg.num_heads // cfg.kv_heads
    q, k, v = (linear(p[name], x) for name in ("query", "key", "value"))
    heads = []
    for h in range(cfg.num_heads):
        own, shared = np.s_[:, h * K : (h + 1) * K], np.s_[:, h // share * K : (h // share + 1) * K]
        qh, kh, vh = q[own], k[shared], v[shared]
        if cfg.position.kind == "rope":
            qh, kh = rotate(cfg, qh, positions), rotate(cfg, kh, positions)
        out = np.zeros_like(qh)
        for i in range(len(x)):
            seen = [j for j in range(i + 1) if documents[j] == documents[i] != 0]
            if seen:
                scores = kh[seen] @ qh[i] / math.sqrt(K)
                w = np.exp(scores - scores.max())
                out[i] = w @ vh[seen] / w.sum()
        heads.append(out)
    return linear(p["output"], np.concatenate(heads, -1))


def feed_forward(cfg, p, x):
    f, h = ACTIVATIONS[GATES.get(cfg.activation, cfg.activation)], linear(p["up"], x)
    return linear(p["down"], f(linear(p["gate"], x)) * h if cfg.activation in GATES else f(h))


def row_logits(cfg, p, tokens, documents):
    """Logits [L, V] of one row; `p` has its layers unrolled."""
    positions = [list(documents[:i]).count(document) for i, document in enumerate(documents)]
    x = np.float64(p["embedding"]["table"])[tokens]
    x = x * math.sqrt(cfg.d_model) if cfg.scale_embeddings else x
    if cfg.position.kind == "sinusoidal":
        x = x + sinusoid(cfg, positions)
    if cfg.position.kind == "learned":
        x = x + np.float64(p["position"]["table"])[positions]
    for i in range(cfg.num_layers):
        q = p["layers"][i]
        for name in ("attention", "feed_forward"):
            y = x
            if cfg.norm_placement in ("pre", "sandwich"):
                y = norm(cfg, q[f"{name}_norm"], y)
            if name == "attention":
                y = attention(cfg, q[name], y, positions, documents)
            else:
                y = feed_forward(cfg, q[name], y)
            if cfg.norm_placement == "sandwich":
                y = norm(cfg, q[f"{name}_post_norm"], y)
            x = x + y
            if cfg.norm_placement == "post":
                x = norm(cfg, q[f"{name}_norm"], x)
    last = {"true": True, "false": False, "auto": cfg.norm_placement in ("pre", "sandwich")}
    if last[cfg.final_norm]:
        x = norm(cfg, p["final_norm"], x)
    kernel = p["embedding"]["table"].T if cfg.tie_embeddings else p["head"]["kernel"]
    return x @ np.float64(kernel) + (np.float64(p["head"]["bias"]) if cfg.head_bias else 0)
