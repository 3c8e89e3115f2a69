"""Encoder, decoder and both in NumPy float64, from the papers, sharing no code with jaxformer."""

import math

import numpy as np

from tests import oracle_positions

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_exact": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
GATES = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu"}


def linear(p, x):
    return x @ np.float64(p["kernel"]) + (np.float64(p["bias"]) if "bias" in p else 0)


def norm(cfg, p, x, kind=""):
    x = x - x.mean(-1, keepdims=True) * ((kind or cfg.norm) == "layernorm")
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + cfg.norm_epsilon)
    return x * np.float64(p["scale"]) + (np.float64(p["bias"]) if "bias" in p else 0)


def angles(positions, width, base):
    return np.array(positions)[:, None] * base ** (-np.arange(0, width, 2) / width)


def sinusoid(cfg, positions):
    section, out = cfg.position.sinusoidal, np.zeros((len(positions), cfg.d_model))
    half, angle = cfg.d_model // 2, angles(positions, cfg.d_model, section.base)
    pairs, halves = (np.s_[0::2], np.s_[1::2]), (np.s_[:half], np.s_[half:])
    sines, cosines = halves if section.layout == "concatenated" else pairs
    out[:, sines], out[:, cosines] = np.sin(angle), np.cos(angle)
    return section.scale * out


def rotate(cfg, x, positions, extents, sign=0):
    """x [L, K] of one head, each pair seen as a complex number; `sign` is that of xPos's powers."""
    section, width = cfg.position.rope, round(cfg.position.rope.fraction * cfg.head_width)
    halves = np.s_[: width // 2], np.s_[width // 2 : width]
    first, second = halves if section.layout == "half" else (np.s_[0:width:2], np.s_[1:width:2])
    pairs = zip(positions, extents, strict=True)
    turned = [(t, *oracle_positions.frequencies(cfg, width, extent)) for t, extent in pairs]
    turn = np.stack([grown * np.exp(1j * t * w) for t, w, grown in turned])
    zetas = np.array(oracle_positions.zetas(cfg, width))
    powers = sign * np.array(positions)[:, None] / cfg.position.xpos.scale_base
    turn = turn * zetas**powers
    z, out = (x[:, first] + 1j * x[:, second]) * turn, x.copy()
    out[:, first], out[:, second] = z.real, z.imag
    return out


def visible(rows, columns, causal=False, window=0, prefix=False):
    """bool [L, S]: the same document, no padding; order and distance count no padding."""
    at, to = np.cumsum(rows != 0)[:, None], np.cumsum(columns != 0)[None]
    near = (np.abs(at - to) < (window or np.inf)) & ((at >= to) | prefix | (not causal))
    return (rows[:, None] == columns) & (columns != 0) & near


def attention(cfg, p, x, source, sees, turn=lambda y, side: y, bias=None, grown=1, by_content=None):
    q, k, v = linear(p["query"], x), linear(p["key"], source), linear(p["value"], source)
    K, share, cap, heads = cfg.head_width, cfg.num_heads // cfg.kv_heads, cfg.attention_softcap, []
    for h in range(cfg.num_heads):
        qh, kh, vh = (y[:, i * K :][:, :K] for y, i in ((q, h), (k, h // share), (v, h // share)))
        if cfg.qk_norm:
            qh, kh = (norm(cfg, p[n], y, "rms") for n, y in (("query_norm", qh), ("key_norm", kh)))
        qh, kh = grown * turn(qh, "q"), turn(kh, "k")
        scores = qh @ kh.T / (math.sqrt(K) if cfg.scale_attention else 1)
        scores = cap * np.tanh(scores / cap) if cap else scores
        more = 0 if by_content is None else by_content[0](qh, scores, sees)
        scores = np.where(sees, scores + more + (0 if bias is None else bias[h]), -np.inf)
        sink = np.float64(p["sink"][h]) if "sink" in p else -np.inf
        top = np.maximum(scores.max(-1, keepdims=True), max(sink, -1e9))
        w = np.exp(scores - top)
        total = w.sum(-1, keepdims=True) + np.exp(sink - top)
        w = w / np.where(total == 0, 1, total)
        mixed = by_content is not None and by_content[1] is not None
        heads.append(w @ vh + (by_content[1](w) if mixed else 0))
    return linear(p["output"], np.concatenate(heads, -1))


def feed_forward(cfg, p, x):
    f, h = ACTIVATIONS[GATES.get(cfg.activation, cfg.activation)], linear(p["up"], x)
    return linear(p["down"], f(linear(p["gate"], x)) * h if "gate" in p else f(h))


def mixture(cfg, p, x, size=0):
    """Token by token; with a size an expert takes no more than that many, the first ones."""
    out, moe, taken = np.zeros(x.shape), cfg.moe, [0] * cfg.moe.num_experts
    for t, scores in enumerate(np.exp(linear(p["router"], x))):
        scores = scores / scores.sum()
        best = np.argsort(-scores)[: moe.top_k].tolist()
        for e in best:
            taken[e] += 1
            if not size or taken[e] <= size:
                own = {
                    name: {n: w[e] for n, w in part.items()} for name, part in p["experts"].items()
                }
                share = scores[e] / (scores[best].sum() if moe.normalize_top_k else 1)
                out[t] += share * feed_forward(cfg, own, x[t])
    return out + feed_forward(cfg, p["shared"], x) if "shared" in p else out


def block(cfg, p, x, own, sees, source, sees_source):
    """`own` turns, biases and scales self-attention."""
    parts = {"attention": lambda y: attention(cfg, p["attention"], y, y, sees, *own)}
    if source is not None:
        cross = p["cross_attention"]
        parts["cross_attention"] = lambda y: attention(cfg, cross, y, source, sees_source)
    network = mixture if "experts" in p["feed_forward"] else feed_forward
    parts["feed_forward"] = lambda y: network(cfg, p["feed_forward"], y)
    for name, part in parts.items():
        y = part(
            norm(cfg, p[name + "_norm"], x) if cfg.norm_placement in ("pre", "sandwich") else x
        )
        y = norm(cfg, p[name + "_post_norm"], y) if cfg.norm_placement == "sandwich" else y
        x = x + y if cfg.residual else y
        x = norm(cfg, p[name + "_norm"], x) if cfg.norm_placement == "post" else x
    return x


def trunk(cfg, p, table, tokens, ids, causal, prefix=False, source=None, source_ids=None):
    positions = [list(ids[:i]).count(document) for i, document in enumerate(ids)]
    x = np.float64(table)[tokens] * (math.sqrt(cfg.d_model) if cfg.scale_embeddings else 1)
    if cfg.position.kind in ("sinusoidal", "learned"):
        tables = p.get("position", {}).get("learned", {}).get("table")
        x = x + (sinusoid(cfg, positions) if tables is None else np.float64(tables)[positions])
    x = norm(cfg, p["embedding_norm"], x) if cfg.embedding_norm else x
    seen = visible(ids, ids if source is None else source_ids)
    extents = [list(ids).count(document) for document in ids]

    def own(kind):
        def turn(y, side):
            if kind not in ("rope", "xpos"):
                return y
            decays = kind == "xpos" and causal
            return rotate(cfg, y, positions, extents, {"q": 1, "k": -1}[side] * decays)

        trained = p.get("position", {}).get(kind, {})
        bias = oracle_positions.bias(cfg, kind, trained, np.array(positions), causal)
        content = oracle_positions.by_content(cfg, kind, trained, np.array(positions), causal)
        return turn, bias, oracle_positions.logn(cfg, positions, extents, causal), content

    for i, spec in enumerate(cfg.layer_specs(len(p["layers"]))):
        sees = visible(ids, ids, causal, spec.window, prefix)
        x = block(cfg, p["layers"][i], x, own(spec.position), sees, source, seen)
    return norm(cfg, p["final_norm"], x) if cfg.has_final_norm else x


def head(cfg, p, table, x, ids):
    if cfg.head.kind == "token":
        return linear(p["classifier"], x)
    if cfg.head.kind == "sequence":
        pooled = x[0] if cfg.head.pooling == "first" else x[ids != 0].mean(0)
        return linear(p["classifier"], np.tanh(linear(p["pooler"], pooled)))
    if cfg.head.transform:
        x = norm(cfg, p["norm"], ACTIVATIONS[cfg.activation](linear(p["transform"], x)))
    p = {"kernel": np.transpose(table)} | p
    logits = linear(p, x / (math.sqrt(cfg.d_model) if cfg.scale_logits else 1))
    return cfg.logit_softcap * np.tanh(logits / cfg.logit_softcap) if cfg.logit_softcap else logits


def row_logits(cfg, p, tokens, ids, source=None, source_ids=None, prefix=False):
    """Logits of one row, of tokens in documents `ids`; `p` has its layers unrolled."""
    causal, owner, states = cfg.architecture != "encoder", p, None
    if cfg.architecture == "encoder_decoder":
        table = p.get("embedding", p["encoder"].get("embedding"))["table"]
        states, owner = trunk(cfg, p["encoder"], table, source, source_ids, False), p["decoder"]
    table = p.get("embedding", owner.get("embedding"))["table"]
    x = trunk(cfg, owner, table, tokens, ids, causal, prefix, states, source_ids)
    return head(cfg, p.get("head", {}), table, x, ids)
