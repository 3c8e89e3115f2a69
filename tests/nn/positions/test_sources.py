"""Which ids tokens get: check values of the papers, keyed draws, batches, generation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation import Greedy, beam_search, generate
from jaxformer.models import forward
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.positions import ENCODINGS
from jaxformer.nn.positions.sources import ARRAYS, evaluation_ids, give_ids
from tests import builders

KEY = jax.random.key(5)
DIGITS = (10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
SOURCE = "position.source."


@functools.cache
def config(kind, size=0, **changes):
    digits = {f"{SOURCE}abacus.digits": DIGITS}
    changes = {f"{SOURCE}kind": kind, f"{SOURCE}range": size} | digits | changes
    return builders.model_config(**changes)


def rows(*documents, width=None):
    """Segment ids of one row that holds documents of these lengths, padded to `width`."""
    ids = np.repeat(np.arange(1, len(documents) + 1), documents)
    return np.pad(ids, (0, (width or len(ids)) - len(ids))).astype(np.int32)


def batch_of(segments_BL, tokens_BL=None):
    starts = np.diff(segments_BL, axis=1, prepend=-1) != 0
    index = np.arange(segments_BL.shape[1])
    since = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return {
        "tokens": np.zeros_like(segments_BL) if tokens_BL is None else tokens_BL,
        "segment_ids": segments_BL,
        "positions": np.where(segments_BL != 0, since, 0).astype(np.int32),
    }


@functools.partial(jax.jit, static_argnames="cfg")
def given(cfg, batch, key):
    return give_ids(cfg, batch, key)


def trained(cfg, batch, numbers=None, key=KEY):
    numbers = np.arange(len(batch["tokens"])) if numbers is None else numbers
    return np.asarray(given(cfg, batch, RowKey(key, jnp.asarray(numbers)))["positions"])


def evaluated(cfg, batch):
    return np.asarray(given(cfg, batch, None)["positions"])


# Offset


def test_a_document_starts_anywhere_that_it_fits_in_training_and_at_0_in_evaluation():
    cfg = config("offset", 12)
    batch = batch_of(np.tile(rows(5, width=7), (2000, 1)))
    ids = trained(cfg, batch)
    assert (ids[:, 5:] == 0).all(), "padding keeps 0"
    assert (np.diff(ids[:, :5]) == 1).all()
    counts = np.bincount(ids[:, 0], minlength=8)
    assert counts.shape == (8,)  # 0 … 12 - 5: the last one has id 11, the last of the range
    assert abs(counts - 250).max() < 4.5 * 250**0.5
    np.testing.assert_array_equal(evaluated(cfg, batch), batch["positions"])
    whole = batch_of(np.tile(rows(12), (20, 1)))
    np.testing.assert_array_equal(trained(cfg, whole), whole["positions"])


def test_without_a_range_the_whole_table_is_drawn_from():
    batch = batch_of(np.tile(rows(4), (300, 1)))
    assert trained(config("offset", max_length=9), batch).max() == 8
    assert trained(config("randomized", max_length=9), batch).max() == 8


# Randomized


def test_a_sample_is_sorted_without_repeats_and_uniform():
    """T = 5 of M = 20: E[id k] = (k + 1)(M + 1)/(T + 1) - 1, and every id as often as any other."""
    cfg, count = config("randomized", 20), 6000
    ids = trained(cfg, batch_of(np.tile(rows(5, width=8), (count, 1))))
    assert (ids[:, 5:] == 0).all(), "padding keeps 0"
    ids = ids[:, :5]
    assert (np.diff(ids) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 20
    error = ids.std(0) / count**0.5
    assert (abs(ids.mean(0) - [2.5, 6, 9.5, 13, 16.5]) < 4 * error).all()
    occurrences = np.bincount(ids.ravel(), minlength=20)
    assert abs(occurrences - count / 4).max() < 4.5 * (count / 4 * 0.75) ** 0.5
    assert len(np.unique(ids, axis=0)) > 4000  # of 15,504


def test_a_sample_of_the_whole_range_is_the_range():
    whole = batch_of(np.stack([rows(6), rows(6)]))
    np.testing.assert_array_equal(trained(config("randomized", 6), whole), whole["positions"])


def test_evaluation_draws_by_the_example_whatever_the_batch():
    cfg = config("randomized", 50)
    batch = batch_of(np.tile(rows(7, width=9), (6, 1))) | {"rows": np.arange(20, 26)}
    together = evaluated(cfg, batch)
    assert len(np.unique(together, axis=0)) == 6
    part = {name: array[[4, 1]] for name, array in batch.items()}
    np.testing.assert_array_equal(evaluated(cfg, part), together[[4, 1]])
    wide = batch_of(np.tile(rows(7, width=30), (6, 1))) | {"rows": batch["rows"]}
    np.testing.assert_array_equal(evaluated(cfg, wide)[:, :9], together)


def test_ids_that_a_task_gives_twice_are_drawn_once():
    """Coupled ids stay coupled: id i becomes the i-th smallest of the sample."""
    batch = batch_of(rows(6)[None]) | {"positions": np.array([[0, 1, 2, 2, 1, 0]], np.int32)}
    ids = trained(config("randomized", 50), batch)[0]
    assert (np.diff(ids[:3]) > 0).all()
    np.testing.assert_array_equal(ids[3:], ids[2::-1])


# Random reals


FLOATS = {f"{SOURCE}random_float.steps": 64, "position.kind": "alibi"}


def test_reals_are_sorted_uniform_ones_that_differ():
    """n = 5 of U(0, M = 20): E[k] = M (k + 1)/(n + 1), and the variance of a Beta variable."""
    cfg, count = config("random_float", 20, **FLOATS), 4000
    ids = trained(cfg, batch_of(np.tile(rows(5, width=8), (count, 1))))
    assert ids.dtype == np.int32
    assert (ids[:, 5:] == 0).all(), "padding keeps 0"
    assert (np.diff(ids[:, :5]) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 20 * 64
    reals, k = ids[:, :5] / 64, np.arange(1, 6)
    error = reals.std(0) / count**0.5
    assert (abs(reals.mean(0) - 20 * k / 6) < 4 * error + 1 / 64).all()
    spread = 20 * np.sqrt(k * (6 - k) / (6**2 * 7))
    np.testing.assert_allclose(reals.std(0), spread, rtol=0.05)
    assert len(np.unique(ids[:, 0] % 64)) == 64  # between whole positions too


def test_reals_of_a_document_depend_on_nothing_else():
    cfg = config("random_float", 50, **FLOATS)
    batch = batch_of(np.stack([rows(3, 4, width=9), rows(2, 4, width=9)]))
    ids = trained(cfg, batch, [7, 7])
    np.testing.assert_array_equal(ids[0, 3:7], ids[1, 2:6])
    assert not np.array_equal(ids[0, :3], ids[0, 3:6])
    assert (np.diff(ids[0, :3]) > 0).all() and (np.diff(ids[0, 3:7]) > 0).all()
    wide = batch_of(np.stack([rows(3, 4, width=30), rows(2, 4, width=30)]))
    np.testing.assert_array_equal(trained(cfg, wide, [7, 7])[:, :9], ids)
    assert not np.array_equal(trained(cfg, batch, [7, 8])[1], ids[1])
    again = evaluated(cfg, batch | {"rows": np.array([4, 5])})
    np.testing.assert_array_equal(evaluated(cfg, batch | {"rows": np.array([4, 5])}), again)


def test_as_many_tokens_as_steps_have_all_of_them():
    """Steps of a whole position, and a document as long as the range: 0, 1, 2, …"""
    cfg = config("random_float", 6, **FLOATS | {f"{SOURCE}random_float.steps": 1})
    whole = batch_of(np.stack([rows(6), rows(6)]))
    np.testing.assert_array_equal(trained(cfg, whole), whole["positions"])


REAL = [kind for kind in ENCODINGS if ENCODINGS[kind].continuous and kind != "cope"]


@pytest.mark.parametrize("kind", REAL)
def test_encodings_divide_by_the_steps(kind):
    """Ids that are 64 to a position, at whole ones: as ids 0, 1, 2, …; elsewhere they are not."""
    tokens = np.random.default_rng(0).integers(0, 40, (2, 7)).astype(np.int32)
    whole = np.arange(7, dtype=np.int32)[None].repeat(2, 0)
    cfg = config("contiguous", **{"position.kind": kind, "position.xpos.scale_base": 4.0})
    fine = config("random_float", **{"position.kind": kind, "position.xpos.scale_base": 4.0})
    params = builders.random_params(cfg)

    def logits(cfg, ids):
        return np.asarray(builders.apply(cfg, params, tokens, positions=ids).logits)

    np.testing.assert_allclose(logits(fine, whole * 64), logits(cfg, whole), atol=2e-5)
    wider = logits(fine, whole * 160)  # 2.5 positions apart
    assert abs(wider - logits(cfg, whole)).max() > 1e-3


def test_halfway_between_two_positions():
    """ALiBi's bias at 2.5 tokens is the mean of those at 2 and 3; a window of 2 ends before 2."""
    cfg = config("random_float", **{"position.kind": "alibi"})
    at, keys = jnp.array([[10 * 64]]), jnp.array([[10 * 64 - n for n in (128, 160, 192)]])
    two, half, three = np.asarray(ENCODINGS["alibi"](cfg, True).bias(at, keys))[0, :, 0].T
    np.testing.assert_allclose(half, (two + three) / 2, rtol=1e-6)
    near = jnp.array([[10 * 64 - n for n in (127, 128)]])
    windows = np.asarray(ENCODINGS["hard_alibi"](cfg, True).allow(at, near))[0, 1, 0]
    assert windows.tolist() == [True, False]


# Abacus


def test_abacus_counts_along_each_number():
    """BOS 1 2 + 3 4 5 = 6 7 EOS, as in McLeish et al.'s code."""
    tokens = np.array([[1, 11, 12, 3, 13, 14, 15, 4, 16, 17, 2]], np.int32)
    cfg = config("abacus", max_length=128)
    batch = batch_of(np.ones_like(tokens), tokens)
    expected = [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 0]
    assert evaluated(cfg, batch)[0].tolist() == expected
    many = {name: np.repeat(array, 2000, 0) for name, array in batch.items()}
    cfg = config("abacus", **{"max_length": 128, f"{SOURCE}abacus.max_offset": 4})
    ids = trained(cfg, many)
    offsets = ids[:, 1] - 1
    np.testing.assert_array_equal(ids, np.where(expected, expected + offsets[:, None], 0))
    counts = np.bincount(offsets, minlength=5)
    assert counts.shape == (5,)
    assert abs(counts - 400).max() < 4.5 * 400**0.5


def test_a_number_ends_with_its_document():
    tokens = np.array([[0, 11, 12, 13, 14, 0]], np.int32)
    segments = np.array([[0, 1, 1, 2, 2, 0]], np.int32)
    ids = evaluated(config("abacus", max_length=128), batch_of(segments, tokens))
    assert ids[0].tolist() == [0, 1, 2, 1, 2, 0]


# Draws


@pytest.mark.parametrize("kind", ["offset", "randomized", "random_float", "abacus"])
def test_draws_depend_on_the_step_the_row_the_site_and_the_document_alone(kind):
    """All in one shape: microbatches are in tests/training/test_step.py."""
    changes = {"position.kind": "alibi"} if kind == "random_float" else {}
    cfg = config(kind, 0 if kind == "abacus" else 999, max_length=1024, **changes)
    batch = pair_of(np.tile(rows(5, 4, 3, width=14), (8, 1)))
    together = trained(cfg, batch)
    order = np.array([5, 0, 7, 2, 2, 1, 3, 6])
    np.testing.assert_array_equal(trained(cfg, batch, order), together[order])
    left = pair_of(np.roll(batch["segment_ids"], 2, axis=1))
    np.testing.assert_array_equal(trained(cfg, left)[:, 2:], together[:, :12])
    firsts = together[:, [0, 5, 9]]  # of each document
    assert len({tuple(first) for first in firsts.T}) == 3
    assert len(np.unique(firsts[:, 0])) > 4
    assert (trained(cfg, batch, key=jax.random.fold_in(KEY, 1)) != together).any()
    both = given(cfg, batch, RowKey(KEY, jnp.arange(8)))
    assert (both["source_positions"] != both["positions"]).any()


def pair_of(segments_BL):
    """A batch whose source and target are the same digits."""
    batch = batch_of(segments_BL, np.full_like(segments_BL, 11))
    both = {f"source_{name}": batch[name] for name in ("positions", "segment_ids")}
    return batch | both | {"source": batch["tokens"]}


# Models


def model_of(kind, size=0, **changes):
    """Learned and rotary positions both: an id, and a distance, changes the logits."""
    changes = {
        "position.kind": "learned",
        "layer_pattern": "rope",
        "max_length": 40,
        "vocab_size": 24,
        "num_layers": 1,
        "d_model": 8,
        "tie_embeddings": False,
    } | changes
    return builders.make_model(config(kind, size, **changes), seed=3)


@functools.cache
def logits(model):
    """(batch, key) -> logits, jitted."""
    graphdef, state = nnx.split(model)
    return jax.jit(lambda batch, key: forward(nnx.merge(graphdef, state), batch, key=key).logits)


def test_a_batch_gets_its_ids_in_forward():
    """New ones in training, others in evaluation."""
    model = model_of("randomized")
    tokens = np.random.default_rng(0).integers(3, 24, (4, 9)).astype(np.int32)
    batch = batch_of(np.tile(rows(6, width=9), (4, 1)), tokens) | {"rows": np.arange(30, 34)}
    graphdef, state = nnx.split(model)
    call = jax.jit(lambda *arrays: nnx.merge(graphdef, state)(*arrays).logits)
    seen = []
    for key in (None, RowKey(KEY, jnp.arange(4))):
        ids = given(model.config, batch, key)["positions"]
        expected = call(tokens, batch["segment_ids"], ids)
        np.testing.assert_allclose(logits(model)(batch, key), expected, atol=1e-5)
        seen.append(np.asarray(ids))
    assert (seen[0] != seen[1]).any()


def test_a_model_alone_does_not_guess_ids():
    tokens = np.ones((1, 4), np.int32)
    for kind in ("randomized", "abacus"):
        with pytest.raises(ValueError, match=f"{kind} ids are not 0, 1, 2"):
            builders.apply(config(kind), builders.random_params(config(kind)), tokens)


PROMPTS = np.array([[1, 12, 13, 4, 15, 5], [11, 6, 0, 0, 0, 0], [12, 12, 5, 0, 0, 0]], np.int32)
LENGTHS = np.array([6, 2, 3], np.int32)


@pytest.mark.parametrize("kind", ["randomized", "random_float", "abacus"])
def test_cached_generation_equals_the_forward_pass_with_the_same_ids(kind):
    """And so does a teacher-forced row of as many tokens: its ids are those of generation."""
    digits = tuple(range(5, 24, 2))
    at_input = "sinusoidal" if kind == "random_float" else "learned"
    model = model_of(kind, **{f"{SOURCE}abacus.digits": digits, "position.kind": at_input})
    numbers = np.array([3, 0, 8])
    count = np.array([9, 5, 9])
    out = generate(
        model, PROMPTS, LENGTHS, max_new_tokens=count, sampler=Greedy(), key=KEY, eos_id=-1,
        rows_B=numbers,
    )  # fmt: skip
    tokens, sizes = np.zeros((3, 16), np.int32), LENGTHS + count - 1
    for row, (length, new) in enumerate(zip(LENGTHS, count, strict=True)):
        tokens[row, :length] = PROMPTS[row, :length]
        tokens[row, length : length + new] = out.tokens[row, :new]
    segments = (np.arange(16) < sizes[:, None]).astype(np.int32)
    batch = batch_of(segments, tokens * segments) | {"rows": numbers}
    guesses = np.asarray(logits(model)(batch, None).argmax(-1))
    for row, (length, new) in enumerate(zip(LENGTHS, count, strict=True)):
        assert (
            guesses[row, length - 1 : length + new - 1].tolist() == out.tokens[row, :new].tolist()
        )
    assert len(np.unique(out.tokens)) > 3
    found = beam_search(
        model, PROMPTS, LENGTHS, max_new_tokens=count, beam_size=1, eos_id=-1, rows_B=numbers
    )
    np.testing.assert_array_equal(found.tokens_BNT[:, 0], out.tokens)
    if kind == "abacus":
        assert 5 < np.isin(out.tokens[:2], digits).sum() < 14, "numbers that end are to be written"
    if kind != "abacus":
        other = generate(
            model, PROMPTS, LENGTHS, max_new_tokens=count, sampler=Greedy(), key=KEY, eos_id=-1
        )
        assert (other.tokens != out.tokens).any()


def test_a_source_of_an_encoder_decoder_has_ids_of_its_own():
    model = model_of("randomized", 30, architecture="encoder_decoder")
    source = np.random.default_rng(1).integers(3, 24, (3, 8)).astype(np.int32)
    out = generate(
        model, source_BS=source, max_new_tokens=6, sampler=Greedy(), key=KEY, eos_id=-1
    )  # fmt: skip
    tokens = np.concatenate([np.ones((3, 1), np.int32), out.tokens[:, :-1]], 1)
    batch = batch_of(np.ones_like(tokens), tokens) | {
        "source": source,
        "source_segment_ids": np.ones_like(source),
        "source_positions": np.tile(np.arange(8, dtype=np.int32), (3, 1)),
    }
    np.testing.assert_array_equal(logits(model)(batch, None).argmax(-1), out.tokens)
    shape = jnp.asarray(source), jnp.ones_like(source), jnp.arange(3)
    ids, apart = (evaluation_ids(model.config, *shape, name) for name in ARRAYS)
    assert (np.asarray(ids) != np.asarray(apart)).any()


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("randomized", 14, r"model\.position\.source\.range: is 14, below 6 prompt tokens \+ 9"),
        ("offset", 0, r"model\.max_length: is 14, below 6 prompt tokens \+ 9"),
        ("abacus", 0, r"model\.max_length: is 13, below 6 prompt tokens \+ 9"),
    ],
)
def test_generation_needs_an_id_for_every_token(kind, size, message):
    model = model_of(kind, size, max_length=20 if size else 14)
    with pytest.raises(UserError, match=message):
        generate(
            model, PROMPTS, LENGTHS, max_new_tokens=9, sampler=Greedy(), key=KEY, eos_id=-1
        )  # fmt: skip


def test_coupled_ids_are_shifted_together_within_the_range():
    """Ids 1 … 4 of a task in two documents, 0 where it couples nothing."""
    ids = np.array([0, 2, 3, 1, 2, 3, 1, 2, 4, 0, 1, 0, 0], np.int32)
    segments = np.array([1] * 9 + [2] * 2 + [0] * 2, np.int32)
    batch = batch_of(np.tile(segments, (400, 1))) | {"positions": np.tile(ids, (400, 1))}
    cfg = config("coupled", 9)
    np.testing.assert_array_equal(evaluated(cfg, batch), batch["positions"])
    found = trained(cfg, batch)
    starts = found - ids
    assert (starts[:, ids == 0] == 0).all()
    for document, most in ((1, 4), (2, 7)):  # the largest id is 8
        here = (segments == document) & (ids > 0)
        first = starts[:, here][:, :1]
        assert (starts[:, here] == first).all()
        assert set(first[:, 0].tolist()) == set(range(most + 1))
    with pytest.raises(UserError, match=r"^model\.position\.source\.kind: is coupled"):
        evaluation_ids(cfg, batch["tokens"], segments[None], np.arange(1))
