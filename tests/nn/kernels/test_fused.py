"""The kernels of accelerators, as far as a CPU can tell: Pallas interpreted, cuDNN's arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import masks
from jaxformer.nn.kernels import cudnn, splash
from tests.nn.kernels.cases import CASES, RAGGED, WHOLE, Case, assert_close, ids, oracle, weighted


def interpreted(q, k, v, rule):
    return splash.attend(q, k, v, rule, splash.prepare(rule, q.shape, k.shape, interpret=True))


SPLASH = ("full", "documents", "window", "cross")


@pytest.mark.parametrize("name", SPLASH)
def test_splash(name):
    """Lengths 37 and 25 and heads of 8 are padded; windows over gaps go to the blockwise kernel."""
    assert_close(weighted(interpreted, CASES[name]), oracle(CASES[name]))


def test_splash_keeps_its_windows_itself_where_there_are_no_gaps(monkeypatch):
    case = Case(tuple(RAGGED), window=7, softcap=1.5, sink=True, groups=2)
    monkeypatch.setattr(splash.blockwise, "attend", lambda q, *rest, by_row: q * jnp.nan)
    assert_close(weighted(interpreted, case), oracle(case))


def test_splash_blocks():
    assert [splash._block(length) for length in (128, 384, 512, 640, 1024)] == [
        *(128, 384, 512, 128, 512)
    ]


@pytest.mark.parametrize(
    "case",
    [
        Case((ids(37), ids(30, -7), ids(-37)), groups=2),
        Case((ids(37), ids(30, -7), ids(-37)), causal=False),
        Case((ids(37), ids(30, -7), ids(20, -17)), window=7, groups=1),
        Case(tuple(RAGGED), window=7),
        Case(tuple(WHOLE), False, source=(ids(20, -5), ids(25), ids(-25)), groups=2),
    ],
    ids=["causal", "full", "window", "documents", "source"],
)
def test_cudnn_is_asked_for_the_same(case, monkeypatch):
    """By XLA's implementation of the same function: what its arguments mean."""
    monkeypatch.setattr(cudnn, "IMPLEMENTATION", "xla")
    assert_close(weighted(cudnn.attend, case), oracle(case))


def test_cudnn_has_a_mask_only_where_rows_are_not_plain(monkeypatch):
    """In the branch without one there is no array of all queries and keys but XLA's own."""
    seen = []

    def record(q, k, v, mask, is_causal, local_window_size, **rest):
        seen.append((mask is not None, is_causal, local_window_size))
        return q

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    q, k, v = CASES["causal"].arrays()
    cudnn.attend(q, k, v, Case(tuple(WHOLE), window=5).rule())
    assert seen == [(False, True, (4, 0)), (True, False, None)]


@pytest.mark.parametrize(
    ("row", "plain", "gaps"),
    [
        (ids(5), True, False),
        (ids(3, -2), True, False),
        (ids(-5), True, False),
        (ids(-2, 3), False, False),
        (ids(2, 3), False, False),
        (ids(2, -1, 2), False, False),
        ([1, 1, 0, 1, 0], False, True),
        ([1, 2, 0, 0, 2], False, True),
    ],
    ids=str,
)
def test_what_rows_look_like(row, plain, gaps):
    rows_BL = jnp.asarray([ids(5), row])
    assert bool(masks.is_plain(rows_BL)) == plain
    assert bool(masks.has_gaps(rows_BL)) == gaps


def test_which_queries_see_anything():
    view = CASES["cross"].rule().visibility
    np.testing.assert_array_equal(masks.sees_any(view), CASES["cross"].mask().any(-1))
    view = Case(tuple(RAGGED), window=1).rule().visibility
    np.testing.assert_array_equal(masks.sees_any(view), np.array(RAGGED) != 0)
