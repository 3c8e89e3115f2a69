"""Properties that hold for every option of the decoder (DESIGN §5, 1–4), pairwise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.analysis.invariants import decoding, packing, padding, visibility
from jaxformer.analysis.subjects import WORDS, Subject
from jaxformer.nn.cache import init_cache
from tests.builders import PAIRS, apply, graphdef, grid_config, product, random_params, row_id

full_product = pytest.mark.parametrize("row", product(), ids=row_id)


@functools.lru_cache(maxsize=2)
def _params(cfg):
    return random_params(cfg)


def tokens(*shape):
    return np.random.default_rng(shape).integers(0, 40, shape).astype(np.int32)


def close(actual, expected, tolerance=1e-5):
    """Equal to `tolerance` of the largest value."""
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def subject_of(row):
    """Enough words for the properties; two rows of `decoding` are longer than max_length."""
    length = 16 if row["position"] == "learned" else 8
    cfg = grid_config(row, max_length=length, vocab_size=2 * WORDS)
    return Subject(cfg, graphdef(cfg), _params(cfg))


CHECKS = [visibility, padding, packing, decoding]
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=lambda n: row_id(PAIRS[n]))
@pytest.mark.parametrize("turn", [0, 2])
def test_invariant(turn, number):
    """Two of the four to each row, in turns; the slow grid has all of them."""
    assert CHECKS[(number + turn) % 4](subject_of(PAIRS[number])) is None


@pytest.mark.slow
@full_product
@every_check
def test_invariant_in_the_full_product(check, row):
    assert check(subject_of(row)) is None


def test_padding_beside_a_document_as_long_as_the_learned_table():
    """Documents of 6 tokens in rows of 12."""
    cfg = grid_config({"position": "learned"}, max_length=6, vocab_size=2 * WORDS)
    assert padding(Subject(cfg, graphdef(cfg), _params(cfg))) is None


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_a_prefill_in_pieces_gives_the_same_cache(position):
    """Ragged pieces, padded on the left; keys and values, positions, segment ids."""
    cfg = grid_config({"position": position})
    params, tokens_BL, lengths_B = _params(cfg), tokens(4, 6), np.array([6, 4, 1, 5])

    def feed(cache, at_B, counts_B, left):
        ids_BL, segment_ids_BL = np.zeros((2, 4, 6), np.int32)
        for b, (at, n) in enumerate(zip(at_B, counts_B, strict=True)):
            place = slice(6 - n, 6) if left else slice(0, n)
            ids_BL[b, place], segment_ids_BL[b, place] = tokens_BL[b, at : at + n], 1
        return apply(cfg, params, ids_BL, segment_ids_BL, cache=cache).cache

    whole = feed(init_cache(cfg, 4, 14), np.zeros(4, int), lengths_B, False)
    in_pieces, at_B = init_cache(cfg, 4, 14), np.zeros(4, int)
    for counts_B in ([2, 3, 0, 1], [1, 0, 1, 0], [3, 1, 0, 4]):
        in_pieces = feed(in_pieces, at_B, counts_B, True)
        at_B = at_B + counts_B
    for a, b in zip(jax.tree.leaves(in_pieces), jax.tree.leaves(whole), strict=True):
        close(a, b)
    np.testing.assert_array_equal(whole.length_B, lengths_B)
    np.testing.assert_array_equal(whole.segment_ids_BC, np.arange(14) < lengths_B[:, None])


def test_a_finished_row_beside_a_learned_table_that_is_full():
    """A row that is done when its table is used up pads on; nothing becomes NaN."""
    cfg = grid_config({"position": "learned"}, max_length=6)
    params = _params(cfg)
    out = apply(cfg, params, tokens(4, 6), cache=init_cache(cfg, 4, 14))
    out = apply(cfg, params, tokens(4, 1), np.zeros((4, 1), np.int32), cache=out.cache)
    assert np.isfinite(out.logits).all()


def test_a_position_beyond_the_learned_table_gives_nan():
    cfg = grid_config({"position": "learned"}, max_length=6)
    logits_BLV = np.asarray(apply(cfg, _params(cfg), tokens(4, 12)).logits)
    assert np.isnan(logits_BLV[:, 6:]).all()
    assert np.isfinite(apply(cfg, _params(cfg), tokens(4, 6)).logits).all()


@pytest.mark.parametrize("token", [40, -1])
def test_a_token_outside_the_vocabulary_gives_nan(token):
    cfg = grid_config({"position": "none"})
    tokens_BL = tokens(4, 6)
    tokens_BL[1, 5] = token
    is_nan_BL = np.isnan(apply(cfg, _params(cfg), tokens_BL).logits).any(-1)
    assert is_nan_BL[1, 5]
    assert not is_nan_BL[[0, 2, 3]].any()


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope"])
def test_explicit_positions_replace_the_contiguous_ones(position):
    cfg = grid_config({"position": position})
    positions_BL = np.tile(np.arange(6, dtype=np.int32), (4, 1))
    plain, same, other = (
        np.asarray(apply(cfg, _params(cfg), tokens(4, 6), positions=p).logits)
        for p in (None, positions_BL, positions_BL * 2)
    )
    np.testing.assert_array_equal(plain, same)
    assert np.abs(plain - other).max() > 1e-3


@pytest.mark.parametrize(("position", "layers"), [("learned", "unrolled"), ("rope", "scanned")])
def test_calls_of_one_shape_compile_once(position, layers):
    """DESIGN §5, 16: prefill and decoding."""
    cfg = grid_config({"position": position, "layers": layers})
    traced = []

    @jax.jit
    def step(params, ids_BL, cache):
        traced.append(ids_BL.shape)
        out = nnx.merge(graphdef(cfg), params)(ids_BL, cache=cache)
        return out.logits.argmax(-1)[:, -1:].astype(jnp.int32), out.cache

    params, prompt_BP = _params(cfg), jnp.asarray(tokens(2, 3))
    ids_BL, cache = step(params, prompt_BP, init_cache(cfg, 2, 8))
    for _ in range(3):
        ids_BL, cache = step(params, ids_BL, cache)
    step(jax.tree.map(lambda x: x + 1, params), prompt_BP + 1, init_cache(cfg, 2, 8))
    assert traced == [(2, 3), (2, 1)]
