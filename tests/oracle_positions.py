"""Position encodings in NumPy float64, from the papers, sharing no code with jaxformer."""

import math

import numpy as np


def frequencies(cfg, width, extent):
    """Of a document of `extent` tokens; what the rotated vectors are multiplied by."""
    rope, scaling = cfg.position.rope, cfg.position.rope.scaling
    s, length, base = scaling.factor, scaling.original_length or cfg.max_length, rope.base
    if scaling.kind == "ntk":
        base *= s ** (width / (width - 2))
    if scaling.kind == "dynamic_ntk" and extent > length:
        a = scaling.dynamic_ntk.alpha
        base *= (a * extent / length - (a - 1)) ** (width / (width - 2))
    w = np.array([base ** (-2 * m / width) for m in range(width // 2)])
    turns, grown = length * w / (2 * math.pi), 1.0
    if scaling.kind == "linear":
        w = w / s
    if scaling.kind in ("yarn", "ntk_by_parts"):
        section = getattr(scaling, scaling.kind)

        def place(beta):
            return width * math.log(length / beta / 2 / math.pi) / 2 / math.log(base)

        low = max(math.floor(place(section.beta_fast)), 0)
        high = min(math.ceil(place(section.beta_slow)), width - 1)
        for m in range(width // 2):
            share = min(max((m - low) / (high - low), 0), 1)
            w[m] = (1 - share) * w[m] + share * w[m] / s
        if scaling.kind == "yarn":
            grown = scaling.yarn.temperature or 1 + math.log(s) / 10
    if scaling.kind == "llama3":
        low, high = scaling.llama3.low_frequency_factor, scaling.llama3.high_frequency_factor
        for m, t in enumerate(turns):
            if t < low:
                w[m] /= s
            elif t <= high:
                smooth = (t - low) / (high - low)
                w[m] = (1 - smooth) * w[m] / s + smooth * w[m]
    w[int(rope.keep * width // 2) :] = 0
    return w, grown


def slopes(n):
    if math.log2(n).is_integer():
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return slopes(below) + slopes(2 * below)[0::2][: n - below]


def bucket(section, away, causal):
    """Of a query minus a key, as Raffel et al. describe it."""
    n, start = section.num_buckets, 0
    if causal:
        away = max(away, 0)
    else:
        n //= 2
        start, away = (n if away < 0 else 0), abs(away)
    if away < n // 2:
        return start + away
    share = math.log(away / (n // 2)) / math.log(section.max_distance / (n // 2))
    return start + min(n // 2 + int(share * (n - n // 2)), n - 1)


def bias(cfg, kind, p, at, causal):
    """[H, L, L] for tokens at these positions, or 0."""
    far = np.abs(np.subtract.outer(at, at)).astype(float)
    p = {name: np.float64(leaf) for name, leaf in p.items() if not isinstance(leaf, dict)} | {
        name: leaf for name, leaf in p.items() if isinstance(leaf, dict)
    }
    if kind == "alibi":
        return np.stack([-s * far for s in slopes(cfg.num_heads)])
    if kind == "learned_alibi":
        return np.stack([-np.exp(s) * far for s in p["log_slopes"]])
    if kind == "hard_alibi":
        m = cfg.position.hard_alibi.heads or cfg.num_heads // 2
        heads = [(far >= h) if h <= m else (far < 0) for h in range(1, cfg.num_heads + 1)]
        return np.stack([np.where(hidden, -np.inf, 0) for hidden in heads])
    if kind == "sandwich":
        d = cfg.position.sandwich.width
        total = sum(np.cos(far / 10000 ** (2 * m / d)) for m in range(d // 2))
        heads = range(1, cfg.num_heads + 1)
        return np.stack([(total - d / 2) / (8 * h / cfg.num_heads) for h in heads])
    if kind == "t5":
        rows = [[p["buckets"][bucket(cfg.position.t5, i - j, causal)] for j in at] for i in at]
        return np.transpose(rows, (2, 0, 1))
    if kind.startswith("kerple"):
        pairs = zip(np.maximum(p["r1"], 0.01), np.maximum(p["r2"], 0.01), strict=True)
        if kind == "kerple_log":
            return np.stack([-a * np.log(1 + b * far) for a, b in pairs])
        return np.stack([-a * far ** min(b, 2) for a, b in pairs])
    if kind == "fire":
        threshold, c = cfg.position.fire.init_length * abs(p["multiplier"]), abs(p["c"])
        ends = np.maximum.outer(at, [0] * len(at) if causal else at)
        x = np.log(c * far + 1) / (np.log(c * np.maximum(ends, threshold) + 1) + 1e-6)
        kernel, start = (np.float64(p["hidden"][n]) for n in ("kernel", "bias"))
        hidden = np.maximum(x[..., None] * kernel[0] + start, 0)
        return np.moveaxis(hidden @ np.float64(p["heads"]["kernel"]), -1, 0)
    return np.zeros((cfg.num_heads, 1, 1))


def zetas(cfg, width):
    gamma = cfg.position.xpos.gamma
    return [(2 * m / width + gamma) / (1 + gamma) for m in range(width // 2)]


def by_content(cfg, kind, p, at, causal):
    """What adds to the scores [L, L] of a head, by q [L, K], scores and visibility; and to its
    outputs, by the weights. None where nothing does."""
    away, L = np.subtract.outer(at, at), len(at)
    if kind == "shaw":
        most, scale = cfg.position.shaw.max_distance, math.sqrt(cfg.head_width)
        first = 0 if causal else -most
        rows = np.array(
            [[min(max(away[i, j], first), most) - first for j in range(L)] for i in range(L)]
        )
        a, b = (np.float64(p[n])[rows] if n in p else None for n in ("keys", "values"))
        scale = scale if cfg.scale_attention else 1

        def score(q, scores, sees):
            return np.einsum("LK,LSK->LS", q, a) / scale

        def mix(weights):
            return 0 if b is None else np.einsum("LS,LSK->LK", weights, b)

        return score, mix
    if kind == "cope":
        e = np.float64(p["vectors"])

        def score(q, scores, sees):
            out = np.zeros((L, L))
            for i in range(L):
                gates = [1 / (1 + math.exp(-scores[i, k])) if sees[i, k] else 0 for k in range(L)]
                for j in range(L):
                    if causal:
                        counted = gates[j:]
                    elif away[i, j] >= 0:
                        counted = [gates[k] for k in range(j, L) if away[i, k] >= 0]
                    else:
                        counted = [gates[k] for k in range(j + 1) if away[i, k] < 0]
                    n = min(sum(counted), len(e) - 1)
                    low, high = e[math.floor(n)] @ q[i], e[math.ceil(n)] @ q[i]
                    out[i, j] = low + (n - math.floor(n)) * (high - low)
            return out

        return score, None
    return None


def logn(cfg, at, extents, causal):
    """What each query is multiplied by: [L, 1]."""
    n = np.array(at) + 1 if causal else np.array(extents)
    length = cfg.position.logn_length
    return np.where(n > length, np.log(n) / math.log(length), 1)[:, None] if length else 1
