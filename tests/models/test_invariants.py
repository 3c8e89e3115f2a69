"""Properties that hold for every option of the decoder (DESIGN §5, 1–4), pairwise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn.cache import init_cache
from tests.builders import PAIRS, apply, graphdef, grid_config, product, random_params, row_id

every_option = pytest.mark.parametrize("row", PAIRS, ids=row_id)
full_product = pytest.mark.parametrize("row", product(), ids=row_id)


@functools.lru_cache(maxsize=2)
def _params(cfg):
    return random_params(cfg)


def tokens(*shape):
    return np.random.default_rng(shape).integers(0, 40, shape).astype(np.int32)


def close(actual, expected, tolerance=1e-5):
    """Equal to `tolerance` of the largest value."""
    if not np.size(expected):
        return
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


# All checks use the shapes [4, 6], [4, 12] and [4, 1], so that they share their compiled ops.


def check_causality(cfg):
    """Row b of the batch asks which embeddings the hidden state at its place t depends on."""
    places_B, params = np.array([0, 1, 3, 5]), _params(cfg)
    tokens_BL = np.arange(24, dtype=np.int32).reshape(4, 6)  # each token stands at one place
    weights_BD = np.random.default_rng(1).normal(size=(4, cfg.d_model)).astype(np.float32)

    def at_own_place(table_VD):
        hidden_BLD = apply(cfg, params | {"embedding": {"table": table_VD}}, tokens_BL).hidden
        return (hidden_BLD[np.arange(4), places_B] * weights_BD).sum()

    gradient_VD = np.asarray(jax.grad(at_own_place)(params["embedding"]["table"]))
    depends_BL = (gradient_VD[:24] != 0).any(1).reshape(4, 6)
    distances_BL = places_B[:, None] - np.arange(6)
    reach = cfg.num_layers * (cfg.window - 1) if cfg.window else 6
    np.testing.assert_array_equal(depends_BL, (distances_BL >= 0) & (distances_BL <= reach))


def check_padding(cfg):
    """Padding before, after and in between, whatever tokens it holds, changes no logit."""
    params, documents_BP = _params(cfg), tokens(4, 6)
    plain_BPV = np.asarray(apply(cfg, params, documents_BP).logits)
    places = [range(6), range(6, 12), [0, 2, 3, 6, 7, 11], [1, 2, 4, 5, 8, 9]]
    real_BL = np.array([[i in row for i in range(12)] for row in places])
    tokens_BL = tokens(4, 12)
    tokens_BL[real_BL] = documents_BP.ravel()
    padded = np.asarray(apply(cfg, params, tokens_BL, real_BL.astype(np.int32)).logits)[real_BL]
    close(padded.reshape(plain_BPV.shape), plain_BPV)
    tokens_BL[~real_BL] = 39 - tokens_BL[~real_BL]
    again = np.asarray(apply(cfg, params, tokens_BL, real_BL.astype(np.int32)).logits)[real_BL]
    np.testing.assert_array_equal(again, padded)


def check_packing(cfg):
    """Row 0 packs what rows 1, 2, 3 hold alone; a changed document leaves no bit of the others."""
    lengths, params = (4, 3, 2), _params(cfg)
    tokens_BL, segment_ids_BL = np.zeros((2, 4, 12), np.int32)
    start = 1
    for i, n in enumerate(lengths, 1):
        tokens_BL[i, :n] = tokens_BL[0, start : start + n] = tokens(n, i)[:, 0]
        segment_ids_BL[0, start : start + n], segment_ids_BL[i, :n] = i, 1
        start += n
    logits_BLV = np.asarray(apply(cfg, params, tokens_BL, segment_ids_BL).logits)
    for i, n in enumerate(lengths, 1):
        close(logits_BLV[0, segment_ids_BL[0] == i], logits_BLV[i, :n])
    changed_BL = np.where(segment_ids_BL == 2, 39 - tokens_BL, tokens_BL)
    other_BLV = np.asarray(apply(cfg, params, changed_BL, segment_ids_BL).logits)
    is_changed_L = segment_ids_BL[0] == 2
    np.testing.assert_array_equal(other_BLV[0, ~is_changed_L], logits_BLV[0, ~is_changed_L])
    assert (other_BLV[0, is_changed_L] != logits_BLV[0, is_changed_L]).any(1).all()


def check_cache(cfg):
    """Ragged prefill in one piece or three, then one token at a time, equals the full forward.

    Two rows are longer than max_length unless positions are learned.
    """
    lengths_B, prompts_B, params = np.array([12, 10, 6, 12]), np.array([6, 4, 1, 5]), _params(cfg)
    tokens_BL = tokens(4, 12)
    full_BLV = np.asarray(apply(cfg, params, tokens_BL).logits)

    def feed(cache, at_B, counts_B, width, left=False):
        """The next counts_B tokens of each row, padded to `width`; every other row on the left."""
        ids_BL, segment_ids_BL = np.full((2, 4, width), 0, np.int32)
        for b, (at, n) in enumerate(zip(at_B, counts_B, strict=True)):
            place = slice(width - n, width) if left and b % 2 else slice(0, n)
            ids_BL[b, place], segment_ids_BL[b, place] = tokens_BL[b, at : at + n], 1
        out = apply(cfg, params, ids_BL, segment_ids_BL, cache=cache)
        logits_BLV = np.asarray(out.logits)
        for b, (at, n) in enumerate(zip(at_B, counts_B, strict=True)):
            close(logits_BLV[b, segment_ids_BL[b] != 0], full_BLV[b, at : at + n])
        return out.cache

    cache = feed(init_cache(cfg, 4, 14), np.zeros(4, int), prompts_B, 6)
    in_pieces, at_B = init_cache(cfg, 4, 14), np.zeros(4, int)
    for counts_B in ([2, 3, 0, 1], [1, 0, 1, 0], [3, 1, 0, 4]):
        in_pieces = feed(in_pieces, at_B, counts_B, 6, left=True)
        at_B = at_B + counts_B
    for a, b in zip(jax.tree.leaves(in_pieces), jax.tree.leaves(cache), strict=True):
        close(a, b)
    while (at_B < lengths_B).any():
        counts_B = (at_B < lengths_B).astype(int)
        cache = feed(cache, at_B, counts_B, 1)
        at_B = at_B + counts_B
    np.testing.assert_array_equal(cache.length_B, lengths_B)
    np.testing.assert_array_equal(cache.segment_ids_BC, np.arange(14) < lengths_B[:, None])


CHECKS = [check_causality, check_padding, check_packing, check_cache]
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__[6:])


def run(check, row):
    learned = row["position"] == "learned"
    check(grid_config(row, max_length=16 if learned else 8))


@every_option
@every_check
def test_invariant(check, row):
    run(check, row)


@pytest.mark.slow
@full_product
@every_check
def test_invariant_in_the_full_product(check, row):
    run(check, row)


def test_padding_beside_a_document_as_long_as_the_learned_table():
    cfg = grid_config({"position": "learned"}, max_length=6)
    check_padding(cfg)


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


@pytest.mark.parametrize("position", ["none", "rope", "rope_half", "rope_pairs"])
def test_relative_encodings_ignore_a_shift_of_positions(position):
    cfg = grid_config({"position": position})
    positions_BL = np.tile(np.arange(6, dtype=np.int32), (4, 1))
    here, there = (
        np.asarray(apply(cfg, _params(cfg), tokens(4, 6), positions=positions_BL + shift).logits)
        for shift in (0, 100)
    )
    close(there, here, 3e-5)  # angles near 100 are rounded to 4e-6


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
