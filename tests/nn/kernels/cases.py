"""Calls of attention that kernels have to agree on, and the answer in NumPy float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.nn import masks
from jaxformer.nn.kernels import reference
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.masks import Visibility

L = 37  # no multiple of any block


def ids(*lengths):
    """Segment ids of one row: ids(-3, 20, 14) is three of padding, then two documents."""
    row, document = [], 0
    for length in lengths:
        document += length > 0
        row += [document if length > 0 else 0] * abs(length)
    return row


RAGGED = [ids(-5, 15, 17), ids(30, -7), ids(-37)]
GAPS = [[1] * 9 + [0] * 4 + [1] * 11 + [2] * 6 + [0] * 7, ids(-20, 17), ids(37)]
WHOLE = [ids(37)] * 3


@dataclasses.dataclass(frozen=True)
class Case:
    rows: tuple
    causal: bool = True
    window: int = 0
    groups: int = 4
    softcap: float = 0.0
    sink: bool = False
    prefix: int = 0  # tokens of a prefix language model
    source: tuple = ()  # segment ids of other keys: cross-attention

    def arrays(self, dtype=jnp.float32, heads=4, width=8):
        rng = np.random.default_rng(0)
        keys = np.shape(self.source or self.rows)[1]
        B, length = np.shape(self.rows)
        shapes = [(B, length, heads, width), *[(B, keys, self.groups, width)] * 2]
        return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)

    def sinks(self):
        return jnp.asarray([0.5, -1.0, 2.0, 0.0]) if self.sink else None

    def rule(self, sink_H=None, encoding=None, width=8):
        q_ids = jnp.asarray(self.rows, jnp.int32)
        k_ids = jnp.asarray(self.source or self.rows, jnp.int32)
        prefix = None
        if self.prefix:
            prefix = jnp.broadcast_to(jnp.arange(k_ids.shape[1]) < self.prefix, k_ids.shape)
        view = Visibility(
            masks.order(q_ids),
            masks.order(k_ids),
            q_ids,
            k_ids,
            self.causal,
            prefix,
            self.window,
            aligned=not self.source,
        )
        positions = (masks.contiguous_positions(x) for x in (q_ids, k_ids))
        return Rule(view, width**-0.5, self.softcap, sink_H, encoding, *positions)

    def mask(self):
        """bool[B, L, S], pair by pair."""
        found = []
        for row, other in zip(self.rows, self.source or self.rows, strict=True):
            q, k = (np.cumsum(np.array(x) != 0) - 1 for x in (row, other))
            seen = np.zeros((len(row), len(other)), bool)
            for i in range(len(row)):
                for j in range(len(other)):
                    late = k[j] > q[i] and j >= self.prefix
                    far = self.window and abs(q[i] - k[j]) >= self.window
                    same = row[i] == other[j] != 0
                    seen[i, j] = same and not (self.causal and late) and not far
            found.append(seen)
        return np.array(found)


CASES = {
    "causal": Case(tuple(WHOLE)),
    "full": Case(tuple(RAGGED), causal=False, groups=2),
    "documents": Case(tuple(RAGGED), softcap=1.5),
    "window": Case(tuple(GAPS), window=7, groups=1, sink=True),
    "both sides": Case(tuple(RAGGED), causal=False, window=5, sink=True, groups=2),
    "prefix": Case(tuple(WHOLE), prefix=11),
    "cross": Case(tuple(RAGGED), False, source=(ids(20, 5), ids(-1, 24), ids(25))),
}


def weighted(kernel, case, dtype=jnp.float32, encoding=None):
    """Outputs, and gradients of their sum with random weights: jitted."""
    arrays = case.arrays(dtype)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=arrays[0].shape), dtype)

    @jax.jit
    def run(arrays, sink_H):
        out, back = jax.vjp(lambda x, s: kernel(*x, case.rule(s, encoding)), arrays, sink_H)
        (dq, dk, dv), d_sink = back(weights)
        return {"out": out, "q": dq, "k": dk, "v": dv} | ({} if sink_H is None else {"s": d_sink})

    return {name: np.asarray(x, np.float32) for name, x in run(arrays, case.sinks()).items()}


def by_reference(*call):
    return reference.attend(*call)[0]


def oracle(case):
    """The same by the formulas, in float64, one head of one row after another."""
    q, k, v = (np.float64(x) for x in case.arrays())
    weights = np.random.default_rng(1).normal(size=q.shape).astype(np.float32).astype(np.float64)
    found = {"out": np.zeros_like(q), "q": np.zeros_like(q)}
    found |= {"k": np.zeros_like(k), "v": np.zeros_like(v)}
    d_sink, mask, repeats = np.zeros(q.shape[2]), case.mask(), q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            g = h // repeats
            raw = q[b, :, h] @ k[b, :, g].T * q.shape[-1] ** -0.5
            capped = case.softcap * np.tanh(raw / case.softcap) if case.softcap else raw
            e = np.where(mask[b], np.exp(capped), 0)
            total = e.sum(1, keepdims=True)
            own = np.exp(float(case.sinks()[h])) if case.sink else 0.0
            total = total + own
            p = np.divide(e, total, out=np.zeros_like(e), where=total != 0)
            d = weights[b, :, h]
            found["out"][b, :, h] = p @ v[b, :, g]
            found["v"][b, :, g] += p.T @ d
            dp = d @ v[b, :, g].T
            inner = (p * dp).sum(1, keepdims=True)
            ds = p * (dp - inner)
            d_sink[h] -= (inner[:, 0] * own / np.where(total == 0, 1, total)[:, 0]).sum()
            if case.softcap:
                ds = ds * (1 - (capped / case.softcap) ** 2)
            ds *= q.shape[-1] ** -0.5
            found["q"][b, :, h] = ds @ k[b, :, g]
            found["k"][b, :, g] += ds.T @ q[b, :, h]
    return found | ({"s": d_sink} if case.sink else {})


def assert_close(found, expected, atol=2e-5):
    assert found.keys() == expected.keys()
    for name, x in found.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=atol, err_msg=name)
