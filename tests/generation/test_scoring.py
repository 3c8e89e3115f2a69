"""Scores of continuations against one full forward pass each, summed by NumPy."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.data.tasks.agreement import agreement_tokenizer
from jaxformer.errors import UserError
from jaxformer.generation import Greedy, generate, score, score_texts, scoring
from tests import builders

VOCAB, START = 11, 2
PROMPTS = [[3, 1, 4, 1, 5], [2, 6], [5, 3, 5], [7], [2, 6]]
CONTINUATIONS = [[9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3], [2, 3, 8], [4, 6, 2, 6], [5, 1]]


def make_model(seed=3, **changes):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "vocab_size": VOCAB}
    plain = {"tie_embeddings": False, "max_length": 14, "position.kind": "rope"}
    return builders.make_model(builders.model_config(**(sizes | plain | changes)), seed=seed)


def log_softmax(logits_LV):
    logits_LV = np.asarray(logits_LV, np.float64)
    shifted_LV = logits_LV - logits_LV.max(-1, keepdims=True)
    return shifted_LV - np.log(np.exp(shifted_LV).sum(-1, keepdims=True))


@functools.cache
def full_forward(model):
    """Logits [L, V] of a whole row of 16 tokens; what follows a place cannot matter there."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def run(tokens_1L, source_1S, segments_1S, prefix_1L):
        model = nnx.merge(graphdef, state)
        if model.config.architecture == "encoder_decoder":
            return model(source_1S, tokens_1L, segments_1S).logits[0]
        how = {} if prefix_1L is None else {"prefix": prefix_1L}
        return model(tokens_1L, **how).logits[0]

    return run


def wide(ids, width=16):
    return np.pad(np.array(ids, np.int32), (0, width - len(ids)), constant_values=5)[None]


def oracle(model, prompt, continuation, prefix=False):
    """(log-probability, tokens, tokens that are the most probable) of one pair, all alone."""
    both = model.config.architecture == "encoder_decoder"
    read = [START, *continuation] if both else [*prompt, *continuation]
    width = min(16, model.config.max_length) if model.config.position.kind == "learned" else 16
    prefix_1L = np.arange(width)[None] < len(prompt) if prefix else None
    source_1S = wide(prompt)
    segments_1S = (np.arange(16)[None] < len(prompt)).astype(np.int32)
    logits_LV = full_forward(model)(wide(read[:-1], width), source_1S, segments_1S, prefix_1L)
    logprobs_LV = log_softmax(logits_LV)[0 if both else len(prompt) - 1 :]
    picked = [logprobs_LV[i, token] for i, token in enumerate(continuation)]
    best = [int(logprobs_LV[i].argmax()) == token for i, token in enumerate(continuation)]
    return sum(picked), len(continuation), sum(best)


def same(scores, wanted):
    logprobs, tokens, greedy = zip(*wanted, strict=True)
    np.testing.assert_allclose(scores.logprobs, logprobs, rtol=1e-5)
    assert scores.logprobs.dtype == np.float64
    assert scores.num_tokens.tolist() == list(tokens)
    assert scores.num_greedy.tolist() == list(greedy)


@pytest.mark.parametrize(
    ("changes", "prefix"),
    [
        ({}, False),
        ({"position.kind": "learned", "num_layers": 2}, False),
        ({"num_layers": 2}, True),
        ({"architecture": "encoder_decoder", "position.kind": "t5"}, False),
        ({"architecture": "lstm", "position.kind": "none", "num_heads": 4, "d_ff": 0}, False),
    ],
    ids=["rope", "learned", "prefix", "encoder_decoder", "lstm"],
)
def test_scores_are_those_of_each_pair_alone_in_batches_of_any_size(changes, prefix):
    model = make_model(**changes)
    wanted = [oracle(model, *pair, prefix) for pair in zip(PROMPTS, CONTINUATIONS, strict=True)]
    for batch_size in (1, 2, 32):
        found = score(
            model, PROMPTS, CONTINUATIONS, bos_id=START, prefix=prefix, batch_size=batch_size
        )
        same(found, wanted)


def test_logits_of_a_few_positions_at_a_time(monkeypatch):
    """13 targets in parts of one position each; a cached program would not be split."""
    model, continuations = make_model(seed=4), [[*ids, 1] for ids in CONTINUATIONS]
    wanted = [oracle(model, *pair) for pair in zip(PROMPTS, continuations, strict=True)]
    monkeypatch.setattr(scoring, "LOGITS", 5 * VOCAB)
    with jax.checking_leaks():
        same(score(model, PROMPTS, continuations), wanted)


def test_what_greedy_generation_gives_is_greedy_and_has_its_log_probability():
    model = make_model()
    prompts = np.array([[3, 1, 4], [2, 6, 5]], np.int32)
    out = generate(
        model,
        prompts,
        np.array([3, 3]),
        max_new_tokens=6,
        sampler=Greedy(),
        key=jax.random.key(0),
        eos_id=-1,
    )
    scores = score(model, list(prompts), list(out.tokens))
    assert scores.is_greedy.tolist() == [True, True]
    np.testing.assert_allclose(scores.logprobs, out.logprobs.sum(1), rtol=1e-4)
    other = out.tokens.copy()
    other[1, -1] = (other[1, -1] + 1) % VOCAB
    assert score(model, list(prompts), list(other)).is_greedy.tolist() == [True, False]


def test_randomized_positions_go_by_the_number_of_the_example():
    model = make_model(
        **{"position.kind": "sinusoidal", "position.source.kind": "randomized", "max_length": 40}
    )
    together = score(model, PROMPTS, CONTINUATIONS)
    small = score(model, PROMPTS, CONTINUATIONS, batch_size=2)
    np.testing.assert_allclose(small.logprobs, together.logprobs, rtol=1e-6)
    first = score(model, PROMPTS[:1], CONTINUATIONS[:1])
    assert first.logprobs[0] == pytest.approx(together.logprobs[0], rel=1e-6)
    moved = score(model, PROMPTS[::-1], CONTINUATIONS[::-1])
    assert abs(moved.logprobs[4] - together.logprobs[0]) > 1e-4


def test_like_lengths_share_few_programs():
    model = make_model(seed=9, max_length=200)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCAB, n) for n in range(1, 30)]
    before = scoring._score._cache_size()
    score(model, prompts, [ids[:4] for ids in prompts], batch_size=4)
    assert scoring._score._cache_size() - before == 3  # rows of 8, 16, 32 (4 targets: 8)


def test_texts_are_framed_as_in_training():
    words = agreement_tokenizer()
    model = builders.make_model(builders.model_config(vocab_size=words.vocab_size, num_layers=1))
    how = {"add_bos": True, "add_eos": True}
    found = score_texts(model, words, ["the boy", ""], ["near dogs", "the boys"], **how)
    pairs = [
        ([words.bos_id, *words.encode("the boy")], words.encode("near dogs")),
        ([words.bos_id], words.encode("the boys")),
    ]
    same(found, [oracle(model, *pair) for pair in pairs])
    both = builders.make_model(
        builders.model_config(
            architecture="encoder_decoder", vocab_size=words.vocab_size, num_layers=1
        )
    )
    how["add_bos"] = False
    found = score_texts(both, words, ["the boy"], ["near dogs"], **how)
    read = np.array([[words.start_id, *words.encode("near dogs")]])
    source = np.array([[*words.encode("the boy"), words.eos_id]])
    wanted = [*words.encode("near dogs"), words.eos_id]
    logits_LV = jax.jit(lambda source, read: both(source, read).logits[0])(source, read)
    assert found.num_tokens.tolist() == [3]
    total = sum(log_softmax(logits_LV)[i, token] for i, token in enumerate(wanted))
    assert found.logprobs[0] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "prompts", "continuations", "message"),
    [
        ({"architecture": "encoder"}, [[1]], [[1]], r"model\.architecture: is encoder"),
        ({}, [[1], []], [[1], [1]], "prompt: number 1 is empty"),
        ({}, [[1]], [[]], "continuation: number 0 is empty"),
        ({}, [[1]], [[VOCAB]], "continuation: number 0 has token 11"),
        ({}, [[-1]], [[1]], "prompt: number 0 has token -1"),
        ({}, [[1]], [], "prompts: are 1 for 0"),
        ({"position.kind": "learned"}, [[1] * 12], [[1] * 4], r"continuation: .* 15 tokens"),
    ],
)
def test_what_has_no_score_is_refused(changes, prompts, continuations, message):
    with pytest.raises(UserError, match=message):
        score(make_model(**changes), prompts, continuations)


def test_a_learned_table_is_read_to_its_end():
    model = make_model(**{"position.kind": "learned"})
    pair = [1] * 12, [3, 4, 5]
    same(score(model, [pair[0]], [pair[1]]), [oracle(model, *pair)])


def test_on_a_mesh_the_scores_are_the_same():
    from jaxformer.config import MeshConfig
    from jaxformer.mesh import make_mesh
    from jaxformer.sharding import params_shardings

    model = make_model()
    alone = score(model, PROMPTS, CONTINUATIONS)
    graphdef, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    spread = nnx.merge(graphdef, jax.device_put(params, params_shardings(mesh, params)))
    found = score(spread, PROMPTS, CONTINUATIONS, batch_size=3)
    np.testing.assert_allclose(found.logprobs, alone.logprobs, rtol=1e-5)
    assert found.num_greedy.tolist() == alone.num_greedy.tolist()
