"""Beam search on table models, which give any logits for any prefix, and on small networks."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation import Greedy, LengthPenalty, beam_search, generate
from jaxformer.generation.beam import LENGTH_PENALTIES, _beam_search, search
from tests import builders

EOS, PAD = 1, 0
PENALTIES = [LengthPenalty(form, 0.8) for form in LENGTH_PENALTIES]
# 200 models in all; vocabularies and lengths (V, T) of each group.
SHAPES = [(2, 6, 40), (3, 4, 60), (3, 6, 20), (4, 4, 50), (5, 3, 28), (5, 6, 2)]


def tables(vocab, length, count, seed=0):
    """Logits [B, nodes, V] of every prefix; the children of node n are n V + 1 … n V + V."""
    nodes = (vocab**length - 1) // (vocab - 1)
    rng = np.random.default_rng([seed, vocab, length])
    return rng.normal(size=(count, nodes, vocab), scale=1.5).astype(np.float32)


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    peak = logits.max(-1, keepdims=True)
    return logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))


def divisor(penalty, length):
    """Written out once more."""
    base = {"gnmt": (5 + length) / 6, "notes": (5 + length) / 5, "power": length}[penalty.form]
    return base**penalty.alpha


def every_hypothesis(table_NV, limit, penalty):
    """All (score, tokens, log-probability), best first."""
    logprobs_NV, found, waiting = log_softmax(table_NV), [], [((), 0, 0.0)]
    vocab = table_NV.shape[1]
    while waiting:
        tokens, node, total = waiting.pop()
        for token in range(vocab):
            longer, logprob = (*tokens, token), total + logprobs_NV[node, token]
            if token == EOS or len(longer) == limit:
                found.append((logprob / divisor(penalty, len(longer)), longer, logprob))
            else:
                waiting.append((longer, node * vocab + token + 1, logprob))
    return sorted(found, reverse=True)


@functools.partial(jax.jit, static_argnames=("beam_size", "num_return"))
def search_tables(tables_BNV, limits_B, divisors, beam_size, num_return):
    vocab = tables_BNV.shape[-1]
    rows_B1 = jnp.arange(len(tables_BNV))[:, None]

    def step_logits(node_BK, parents_BK, tokens_BK, real_B):
        node_BK = jnp.take_along_axis(node_BK, parents_BK, 1) * vocab + tokens_BK + 1
        return tables_BNV[rows_B1, node_BK], node_BK

    return search(
        step_logits,
        tables_BNV[:, 0],
        jnp.zeros((len(tables_BNV), beam_size), jnp.int32),
        limits_B,
        divisors,
        EOS,
        PAD,
        beam_size=beam_size,
        num_return=num_return,
    )


def on_tables(tables_BNV, length, *, beam_size, num_return=1, penalty=PENALTIES[0], limits=None):
    limits_B = np.full(len(tables_BNV), length) if limits is None else limits
    found = search_tables(tables_BNV, limits_B, penalty.divisors(length), beam_size, num_return)
    return jax.tree.map(np.asarray, found)


def check(found, row, wanted):
    """Row `row` is the first of the wanted hypotheses, and padding after them."""
    for n, length in enumerate(found.lengths_BN[row]):
        if n >= len(wanted):
            assert length == 0
            assert found.scores_BN[row, n] == -np.inf
            continue
        score, tokens, logprob = wanted[n]
        assert tuple(found.tokens_BNT[row, n, :length]) == tokens
        assert (found.tokens_BNT[row, n, length:] == PAD).all()
        np.testing.assert_allclose(found.scores_BN[row, n], score, rtol=1e-4)
        np.testing.assert_allclose(found.logprobs_BN[row, n], logprob, rtol=1e-4)


@pytest.mark.parametrize(
    "penalty", [LengthPenalty(), *PENALTIES], ids=lambda p: p.form + f"{p.alpha}"
)
@pytest.mark.parametrize(("vocab", "length", "count"), SHAPES)
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(vocab, length, count, penalty):
    tables_BNV = tables(vocab, length, count)
    everything = vocab * (vocab - 1) ** (length - 1)  # continuations there are at the last step
    found = on_tables(tables_BNV, length, beam_size=everything, num_return=3, penalty=penalty)
    for row in range(count):
        check(found, row, every_hypothesis(tables_BNV[row], length, penalty)[:3])


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.form)
def test_more_is_returned_than_there_is(penalty):
    tables_BNV = tables(2, 3, 5)  # 4 hypotheses: E, xE, xxE, xxx
    found = on_tables(tables_BNV, 3, beam_size=8, num_return=6, penalty=penalty)
    for row in range(5):
        check(found, row, every_hypothesis(tables_BNV[row], 3, penalty))


def test_a_beam_of_one_is_greedy_search_under_every_penalty():
    tables_BNV = tables(4, 6, 100)
    for penalty in (LengthPenalty(), *PENALTIES, LengthPenalty("power", 3.0)):
        found = on_tables(tables_BNV, 6, beam_size=1, penalty=penalty)
        for row, table_NV in enumerate(tables_BNV):
            tokens, node = [], 0
            while len(tokens) < 6 and EOS not in tokens:
                tokens.append(int(table_NV[node].argmax()))
                node = node * 4 + tokens[-1] + 1
            assert found.tokens_BNT[row, 0, : found.lengths_BN[row, 0]].tolist() == tokens


def plain_search(table_NV, limit, beam_size, num_return, penalty):
    """The same search to the very end, without any early stop."""
    logprobs_NV, vocab = log_softmax(table_NV), table_NV.shape[1]
    live, found = [((), 0, 0.0)], []
    for _ in range(limit):
        grown = [
            ((*tokens, t), node * vocab + t + 1, total + logprobs_NV[node, t])
            for tokens, node, total in live
            for t in range(vocab)
        ]
        grown = sorted(grown, key=lambda h: -h[2])[:beam_size]
        ended = [h for h in grown if h[0][-1] == EOS or len(h[0]) == limit]
        found += [(total / divisor(penalty, len(t)), t, total) for t, _, total in ended]
        live = [h for h in grown if h not in ended]
    return sorted(found, reverse=True)[:num_return]


@pytest.mark.parametrize("penalty", [*PENALTIES, LengthPenalty("power", 2.0)], ids=str)
@pytest.mark.parametrize("num_return", [1, 3])
def test_stopping_early_loses_nothing(penalty, num_return):
    tables_BNV = tables(4, 6, 100)
    limits = np.random.default_rng(1).integers(1, 7, 100)
    settings = {"beam_size": 3, "num_return": num_return, "penalty": penalty}
    found = on_tables(tables_BNV, 6, limits=limits, **settings)
    for row, limit in enumerate(limits):
        check(found, row, plain_search(tables_BNV[row], limit, **settings))
    assert (np.diff(found.scores_BN, axis=1) <= 0).all()


def test_a_longer_hypothesis_may_overtake_the_first_that_ends():
    # Known bugs 11 and 12. <s> → E .5 | a .4 | b .1, a → a for ever: log .4 / 4 beats log .5 / 1.
    table = np.log(np.full((1, (3**4 - 1) // 2, 3), 1e-6, np.float32))
    table[0, 0] = np.log([0.4, 0.5, 0.1])
    table[0, [1, 4, 13], 0] = 0
    found = on_tables(table, 4, beam_size=2, penalty=LengthPenalty("power", 1.0))
    assert found.tokens_BNT[0, 0].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(found.scores_BN[0, 0], np.log(0.4) / 4, rtol=1e-4)
    found = on_tables(table, 4, beam_size=2, penalty=LengthPenalty())
    assert found.tokens_BNT[0, 0, :1].tolist() == [EOS]


def test_a_row_of_tables_does_not_depend_on_its_neighbours():
    tables_BNV, limits = tables(4, 6, 30), np.arange(30) % 6 + 1
    settings = {"beam_size": 3, "num_return": 2}
    together = on_tables(tables_BNV, 6, limits=limits, **settings)
    for row in (0, 7, 29):
        one = slice(row, row + 1)
        alone = on_tables(tables_BNV[one], 6, limits=limits[one], **settings)
        for x, y in zip(alone, together, strict=True):
            np.testing.assert_array_equal(x, y[one])


@pytest.mark.parametrize("form", LENGTH_PENALTIES)
def test_penalties(form):
    divisors = LengthPenalty(form, 0.7).divisors(9)
    assert divisors.dtype == np.float32
    wanted = [divisor(LengthPenalty(form, 0.7), n) for n in range(1, 10)]
    np.testing.assert_allclose(divisors[1:], wanted, rtol=1e-6)
    assert (LengthPenalty(form).divisors(9) == 1).all()


# Networks -----------------------------------------------------------------------------------------

VOCAB = 11
ENDS = {"decoder": 3, "encoder_decoder": 3}  # tokens that come early and late
PROMPTS = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 0, 0, 0, 0], [5, 3, 5, 0, 0, 0]], np.int32)
LENGTHS = np.array([6, 2, 3], np.int32)
SOURCES = np.array([[7, 3, 2, 9, 4], [6, 1, 0, 0, 0], [5, 5, 8, 0, 0]], np.int32)
SOURCE_SEGMENTS = (SOURCES != 0).astype(np.int32)


@functools.cache
def make_model(architecture, scan_layers=False):
    cfg = builders.model_config(
        **{"architecture": architecture, "position.kind": "rope"},
        num_layers=1,
        d_model=8,
        num_heads=2,
        d_ff=16,
        vocab_size=VOCAB,
        max_length=40,
        tie_embeddings=False,
        scan_layers=scan_layers,
    )
    return builders.make_model(cfg, seed=3)


def inputs(architecture, rows=slice(None)):
    if architecture == "decoder":
        return {"prompts_BP": PROMPTS[rows], "lengths_B": LENGTHS[rows]}
    return {"source_BS": SOURCES[rows], "source_segment_ids": SOURCE_SEGMENTS[rows], "bos_id": 2}


def prompt_of(architecture, row):
    return PROMPTS[row, : LENGTHS[row]] if architecture == "decoder" else np.array([2])


def logprobs(model, architecture, rows, sequences_BL):
    """Log-probabilities [B, L, V] of next tokens, by one forward pass without a cache."""
    leading = () if architecture == "decoder" else (SOURCES[rows],)
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(state, tokens_BL):
        named = {} if architecture == "decoder" else {"source_segment_ids": SOURCE_SEGMENTS[rows]}
        return nnx.merge(graphdef, state)(*leading, tokens_BL, **named).logits

    return log_softmax(forward(state, sequences_BL))


NETWORKS = [("decoder", False), ("decoder", True), ("encoder_decoder", False)]
NETWORKS += [("encoder_decoder", True)]


@pytest.mark.parametrize(("architecture", "scan_layers"), NETWORKS)
def test_beams_of_a_network_have_the_log_probabilities_of_full_forwards(architecture, scan_layers):
    model = make_model(architecture, scan_layers)
    penalty, eos = LengthPenalty("gnmt", 1.0), ENDS[architecture]
    found = beam_search(
        model,
        **inputs(architecture),
        beam_size=4,
        num_return=4,
        max_new_tokens=7,
        eos_id=eos,
        length_penalty=penalty,
    )
    assert found.tokens_BNT.shape == (3, 4, 7)
    assert len(set(found.lengths_BN.ravel().tolist())) > 1, "too dull to test"
    sequences_BL = np.zeros((12, 16), np.int32)  # what follows a hypothesis cannot matter: causal
    rows = list(itertools.product(range(3), range(4)))
    for b, (row, n) in enumerate(rows):
        sequence = np.concatenate([prompt_of(architecture, row), found.tokens_BNT[row, n]])
        sequences_BL[b, : len(sequence)] = sequence
    logprobs_BLV = logprobs(model, architecture, [row for row, _ in rows], sequences_BL)
    for b, (row, n) in enumerate(rows):
        length = found.lengths_BN[row, n]
        tokens = found.tokens_BNT[row, n, :length]
        places = np.arange(length) + len(prompt_of(architecture, row)) - 1
        logprob = logprobs_BLV[b, places, tokens].sum()
        np.testing.assert_allclose(found.logprobs_BN[row, n], logprob, rtol=1e-4)
        wanted = logprob / divisor(penalty, length)
        np.testing.assert_allclose(found.scores_BN[row, n], wanted, rtol=1e-4)
        assert length == 7 or tokens[-1] == eos
        assert eos not in tokens[:-1]
        assert (found.tokens_BNT[row, n, length:] == PAD).all()
    assert (np.diff(found.scores_BN, axis=1) <= 0).all()


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_beam_of_one_is_greedy_generation(architecture):
    model = make_model(architecture)
    settings = {"max_new_tokens": np.array([8, 4, 6]), "eos_id": ENDS[architecture]}
    greedy = generate(
        model, **inputs(architecture), **settings, sampler=Greedy(), key=jax.random.key(0)
    )
    found = beam_search(
        model,
        **inputs(architecture),
        **settings,
        beam_size=1,
        length_penalty=LengthPenalty("power", 2.0),
    )
    np.testing.assert_array_equal(found.tokens_BNT[:, 0], greedy.tokens)
    np.testing.assert_array_equal(found.lengths_BN[:, 0], greedy.lengths)
    np.testing.assert_allclose(found.logprobs_BN[:, 0], greedy.logprobs.sum(1), rtol=1e-5)


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_row_of_a_network_does_not_depend_on_its_neighbours(architecture):
    model = make_model(architecture)
    settings = {"beam_size": 3, "num_return": 3, "max_new_tokens": 7, "eos_id": ENDS[architecture]}
    together = beam_search(model, **inputs(architecture), **settings)
    reversed_ = beam_search(model, **inputs(architecture, slice(None, None, -1)), **settings)
    np.testing.assert_array_equal(reversed_.tokens_BNT[::-1], together.tokens_BNT)
    alone = beam_search(model, **inputs(architecture, slice(1, 2)), **settings)
    np.testing.assert_array_equal(alone.tokens_BNT, together.tokens_BNT[1:2])
    np.testing.assert_allclose(alone.scores_BN, together.scores_BN[1:2], rtol=1e-5)


def test_calls_of_one_bucket_compile_once():
    model = make_model("decoder")
    settings = {"beam_size": 2, "eos_id": -1}
    beam_search(model, PROMPTS, LENGTHS, **settings, max_new_tokens=3)
    before = _beam_search._cache_size()
    penalty = LengthPenalty("notes", 0.5)
    beam_search(model, PROMPTS, LENGTHS, **settings, max_new_tokens=5, length_penalty=penalty)
    assert _beam_search._cache_size() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size: is 0"),
        ({"num_return": 3}, "num_return: is 3, give 1 to beam_size = 2"),
        ({"num_return": 0}, "num_return: is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens: is 0"),
        ({"max_new_tokens": np.array([1, 2])}, r"max_new_tokens: has shape \(2,\)"),
        ({"lengths_B": None}, "prompts: or their lengths are missing"),
        ({"source_BS": SOURCES}, "source: is given while model.architecture = decoder"),
    ],
)
def test_bad_input_is_refused(changes, message):
    settings = inputs("decoder") | {"beam_size": 2, "max_new_tokens": 3, "eos_id": 4}
    with pytest.raises(UserError, match=message):
        beam_search(make_model("decoder"), **(settings | changes))


@pytest.mark.parametrize(
    ("form", "alpha", "message"),
    [
        ("gmnt", 0.6, "length_penalty: is 'gmnt'"),
        ("gnmt", -1.0, "alpha: is -1"),
        ("gnmt", np.nan, "alpha: is nan"),
    ],
)
def test_bad_penalties_are_refused(form, alpha, message):
    with pytest.raises(UserError, match=message):
        LengthPenalty(form, alpha)
