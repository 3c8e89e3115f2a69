"""Generation against a loop without cache, padding or jit."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation import Greedy, Temperature, TopP, generate, stream
from jaxformer.generation.generate import _advance, _start
from jaxformer.generation.inputs import bucket, for_decoding, room
from jaxformer.generation.sampling import penalise
from jaxformer.nn.positions import ENCODINGS
from tests import builders

VOCAB, PAD = 11, 0
NEVER = -1
KEY = jax.random.key(7)


@functools.cache
def make_model(position: str = "rope", num_layers: int = 1, **changes):
    return builders.make_model(
        builders.model_config(
            **{"position.kind": position},
            num_layers=num_layers,
            d_model=8,
            num_heads=2,
            d_ff=16,
            vocab_size=VOCAB,
            max_length=40,
            tie_embeddings=False,
            **changes,
        ),
        seed=3,  # greedy continuations of more than one token
    )


PROMPTS = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 0, 0, 0, 0], [5, 3, 5, 0, 0, 0]], np.int32)
LENGTHS = np.array([6, 2, 3], np.int32)


SETTINGS_OF_HALVES = (
    {},
    {"num_layers": 2, "scan_layers": True},
    {"position": "fire", "activation": "swiglu"},
)


@functools.cache
def next_token(model, sampler):
    """The token at `length` and its log-probability, from a full forward over a fixed width."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def choose(tokens_BL, length, row, index):
        logits_V = nnx.merge(graphdef, state)(tokens_BL).logits[0, length - 1]
        key = jax.random.fold_in(jax.random.fold_in(KEY, row), index)
        token = sampler(logits_V[None], key[None])[0]
        return token, jax.nn.log_softmax(logits_V)[token]

    return choose


def oracle(model, row, prompt, count, sampler, eos=NEVER):
    """One row alone, each token by a full forward (what follows cannot matter: causal)."""
    tokens_BL, logprobs, length = np.zeros((1, 24), np.int32), [], len(prompt)
    tokens_BL[0, :length] = prompt
    for index in range(count):
        token, logprob = next_token(model, sampler)(tokens_BL, length, row, index)
        tokens_BL[0, length] = token
        logprobs.append(float(logprob))
        length += 1
        if token == eos:
            break
    return tokens_BL[0, len(prompt) : length].tolist(), logprobs


def run(model=None, prompts=PROMPTS, lengths=LENGTHS, count=10, sampler=None, eos=NEVER, **kw):
    return generate(
        model or make_model(),
        prompts,
        lengths,
        max_new_tokens=count,
        sampler=sampler or Greedy(),
        key=KEY,
        eos_id=eos,
        **kw,
    )


@pytest.mark.parametrize(
    ("position", "changes", "sampler"),
    [
        ("none", {}, Greedy()),
        ("sinusoidal", {}, Greedy()),
        ("learned", {}, Greedy()),
        ("rope", {}, Greedy()),
        ("rope", {}, Temperature(1.5)),
        ("learned", {"num_layers": 2, "scan_layers": True}, TopP(0.9, temperature=1.3)),
    ],
)
def test_cached_ragged_batch_equals_full_forwards_one_by_one(position, changes, sampler):
    """Tokens, and log-probabilities of the distribution before temperature and filters."""
    model = make_model(position, **changes)
    out = run(model, sampler=sampler)
    assert out.tokens.dtype == np.int32
    assert out.logprobs.dtype == np.float32
    assert out.lengths.tolist() == [10, 10, 10]
    for row, length in enumerate(LENGTHS):
        tokens, logprobs = oracle(model, row, PROMPTS[row, :length], 10, sampler)
        assert out.tokens[row].tolist() == tokens
        np.testing.assert_allclose(out.logprobs[row], logprobs, rtol=1e-4, atol=1e-5)
    assert len(set(out.tokens.ravel().tolist())) > 2, "the continuation is too dull to test"


def test_tokens_of_a_prefix_see_each_other_both_ways():
    """Greedy, each token by a full forward whose prompt is the prefix; a causal prompt differs."""
    model = make_model(num_layers=2)
    graphdef, state = nnx.split(model)

    @jax.jit
    def logits_of(tokens_BL, prefix_BL):
        return nnx.merge(graphdef, state)(tokens_BL, prefix=prefix_BL).logits

    out = run(model, count=6, prefix=True)
    for row, length in enumerate(LENGTHS):
        tokens_BL, prefix_BL = np.zeros((1, 12), np.int32), np.arange(12)[None] < length
        tokens_BL[0, :length] = PROMPTS[row, :length]
        for at in range(length, length + 6):  # what follows cannot matter: causal from there on
            tokens_BL[0, at] = logits_of(tokens_BL, prefix_BL)[0, at - 1].argmax()
        assert out.tokens[row].tolist() == tokens_BL[0, length : length + 6].tolist()
    assert (run(model, count=6).logprobs != out.logprobs).any()


def test_draws_go_by_the_number_of_the_example():
    sampler = Temperature(1.5)
    together = run(sampler=sampler)
    last = run(prompts=PROMPTS[2:], lengths=LENGTHS[2:], sampler=sampler, rows_B=np.array([2]))
    np.testing.assert_array_equal(last.tokens[0], together.tokens[2])


def test_an_encoding_that_declares_that_it_cannot_be_cached_is_not(monkeypatch):
    model = make_model()
    monkeypatch.setattr(ENCODINGS["rope"], "cacheable", False)
    with pytest.raises(UserError, match=r"model\.position\.kind: has rope, .* cannot be cached"):
        run(model)


def test_a_row_does_not_depend_on_other_rows_or_padding():
    sampler = Temperature(1.5)
    together = run(sampler=sampler)
    garbage = np.where(np.arange(6) < LENGTHS[:, None], PROMPTS, -99)
    wide = np.pad(garbage, ((0, 0), (0, 14)), constant_values=12345)
    padded = run(prompts=wide, sampler=sampler)
    np.testing.assert_array_equal(padded.tokens, together.tokens)
    first_two = run(prompts=PROMPTS[:2], lengths=LENGTHS[:2], sampler=sampler)
    np.testing.assert_array_equal(first_two.tokens, together.tokens[:2])


def test_rows_and_indices_draw_from_keys_of_their_own():
    same = np.repeat(PROMPTS[:1], 3, 0)
    out = run(prompts=same, lengths=np.full(3, 6), sampler=Temperature(1.5))
    assert len({tuple(row) for row in out.tokens.tolist()}) == 3
    again = run(prompts=same, lengths=np.full(3, 6), sampler=Temperature(1.5))
    np.testing.assert_array_equal(again.tokens, out.tokens)


def eos_that_comes_early(sampler) -> int:
    """A token that ends row 0 before the last step."""
    tokens = run(sampler=sampler).tokens[0].tolist()
    return tokens[3]


@pytest.mark.parametrize("sampler", [Greedy(), Temperature(1.5)])
def test_after_eos_come_padding_and_zeros(sampler):
    eos = eos_that_comes_early(sampler)
    free, out = run(sampler=sampler), run(sampler=sampler, eos=eos, pad_id=7)
    for row in range(3):
        found = np.flatnonzero(free.tokens[row] == eos)
        length = found[0] + 1 if len(found) else 10
        assert out.lengths[row] == length
        assert out.tokens[row, :length].tolist() == free.tokens[row, :length].tolist()
        assert (out.tokens[row, length:] == 7).all()
        assert (out.logprobs[row, length:] == 0).all()
        assert (out.logprobs[row, :length] < 0).all()


def test_finished_rows_leave_the_others_alone():
    sampler = Temperature(1.5)
    eos = eos_that_comes_early(sampler)
    out = run(sampler=sampler, eos=eos)
    assert len(set(out.lengths.tolist())) > 1
    for row, length in enumerate(LENGTHS):
        tokens, _ = oracle(make_model(), row, PROMPTS[row, :length], 10, sampler, eos)
        assert out.tokens[row, : out.lengths[row]].tolist() == tokens


def test_asking_for_more_tokens_changes_no_earlier_one():
    sampler = Temperature(1.5)
    short, long = run(count=3, sampler=sampler), run(count=10, sampler=sampler)
    np.testing.assert_array_equal(long.tokens[:, :3], short.tokens)
    assert short.tokens.shape == (3, 3)
    assert (short.lengths == 3).all()


class Counting(nnx.Module):
    """Wraps a model and notes the width and number of real tokens of each call that runs."""

    def __init__(self, model, calls):
        self.model, self.config, self.dtype, self.calls = model, model.config, model.dtype, calls

    def __call__(self, tokens_BL, segment_ids, positions, cache):
        width = tokens_BL.shape[1]
        jax.debug.callback(lambda real: self.calls.append((width, int(real))), segment_ids.sum())
        return self.model(tokens_BL, segment_ids, positions, cache)

    def readout(self, hidden):
        return self.model.readout(hidden)


class Calls(list):
    """A list that a graph definition can hash."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def test_work_is_one_prefill_and_one_step_a_token_and_stops_early():
    calls = Calls()
    model = Counting(make_model(), calls)

    def counted(*inputs, eos=NEVER):
        calls.clear()
        out = run(model, *inputs, eos=eos)
        jax.effects_barrier()
        return out, sorted(calls, reverse=True)

    _, work = counted()
    assert work == [(8, LENGTHS.sum())] + [(1, 3)] * 9
    tokens = run().tokens
    eos = next(t for t in tokens[1].tolist() if t not in tokens[0])
    out, work = counted(eos=eos)
    assert out.lengths[1] < out.lengths[0] == 10
    # Finished rows are padding; a row's last token is never fed back.
    assert sum(real for _, real in work[1:]) == (out.lengths - 1).sum()
    same = np.repeat(PROMPTS[:1], 3, 0), np.full(3, 6)
    tokens = run(None, *same).tokens[0].tolist()
    out, work = counted(*same, eos=tokens[3])
    assert len(work) == out.lengths[0] == tokens.index(tokens[3]) + 1 < 10


def test_calls_of_one_bucket_compile_once():
    wide = np.tile(PROMPTS, 2)  # a bucket that no other test uses
    run(prompts=wide, lengths=np.array([12, 3, 9]), count=5)
    before = _start._cache_size(), _advance._cache_size()
    run(prompts=wide, lengths=np.array([10, 11, 1]), count=8, eos=4)
    run(prompts=wide[:, :9], lengths=np.array([9, 2, 1]), count=7, pad_id=3)
    assert (_start._cache_size(), _advance._cache_size()) == before
    run(prompts=wide, lengths=np.array([12, 3, 9]), count=9)
    assert (_start._cache_size(), _advance._cache_size()) == (before[0] + 1, before[1] + 1)


def test_buckets():
    sizes = [bucket(n) for n in (1, 8, 9, 16, 17, 128, 129, 256, 257, 1000)]
    assert sizes == [8, 8, 16, 16, 32, 128, 256, 256, 384, 1024]


def test_learned_positions_are_used_up_to_the_last_and_no_further():
    prompts = np.tile(np.arange(1, 6, dtype=np.int32), (1, 7))[:, :33]
    out = run(make_model("learned"), prompts=prompts, lengths=np.array([33]), count=7)
    assert np.isfinite(out.logprobs).all()
    assert (out.logprobs < 0).all()
    with pytest.raises(UserError, match=r"model\.max_length: is 40, below 33 .* 8 new"):
        run(make_model("learned"), prompts=prompts, lengths=np.array([33]), count=8)
    config = make_model("learned").config
    assert room(config, 33, 20) == 7
    assert room(make_model("rope").config, 33, 20) == 20


def penalised(logits_V, ids, penalty):
    """Keskar et al. 2019 as `transformers` has it: an id counts once, however often it came."""
    seen = np.isin(np.arange(VOCAB), ids)
    factor = np.where(logits_V < 0, penalty, 1 / penalty)
    return np.where(seen, logits_V * factor, logits_V).astype(np.float32)


def penalised_oracle(model, row, prompt, sampler, penalty, count=8, source=None):
    """(tokens, log-probabilities) each by a full forward; a source is not penalised."""
    graphdef, state = nnx.split(model)
    run = jax.jit(lambda *tokens: nnx.merge(graphdef, state)(*tokens).logits[0])
    ids, logprobs = list(prompt), []
    before = () if source is None else (source[None],)
    for index in range(count):
        tokens_1L = np.zeros((1, 16), np.int32)
        tokens_1L[0, : len(ids)] = ids
        logits_V = np.asarray(run(*before, tokens_1L))[len(ids) - 1]
        key = jax.random.fold_in(jax.random.fold_in(KEY, row), index)
        token = int(sampler(penalised(logits_V, ids, penalty)[None], key[None])[0])
        logprobs.append(float(jax.nn.log_softmax(logits_V)[token]))
        ids.append(token)
    return ids[len(prompt) :], logprobs


@pytest.mark.parametrize("sampler", [Greedy(), TopP(0.9, temperature=1.3)])
def test_a_repetition_penalty_is_for_prompt_and_continuation(sampler):
    """Before the sampler's own steps; log-probabilities are of the model's own distribution."""
    out = run(sampler=sampler, count=8, repetition_penalty=1.7)
    for row, length in enumerate(LENGTHS):
        prompt = PROMPTS[row, :length].tolist()
        tokens, logprobs = penalised_oracle(make_model(), row, prompt, sampler, 1.7)
        assert out.tokens[row].tolist() == tokens
        np.testing.assert_allclose(out.logprobs[row], logprobs, rtol=1e-4, atol=1e-5)
    free = run(sampler=sampler, count=8)
    assert (out.tokens != free.tokens).any()
    one = run(sampler=sampler, count=8, repetition_penalty=1.0)
    np.testing.assert_array_equal(one.tokens, free.tokens)


def test_the_penalty_of_a_target_leaves_its_source_alone():
    out = translate(repetition_penalty=3.0)
    row = SOURCES[:1]
    alone = translate(sources=row, segments=np.ones_like(row), repetition_penalty=3.0)
    np.testing.assert_array_equal(alone.tokens[0], out.tokens[0])
    tokens, _ = penalised_oracle(
        make_translator(), 0, [START], Greedy(), 3.0, count=6, source=SOURCES[0]
    )
    assert out.tokens[0].tolist() == tokens
    assert (out.tokens != translate().tokens).any()


def test_the_penalty_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rng = np.random.default_rng(0)
    logits_BV = rng.normal(size=(4, VOCAB)).astype(np.float32)
    ids_BL = rng.integers(0, VOCAB, (4, 6))
    seen_BV = np.stack([np.isin(np.arange(VOCAB), ids) for ids in ids_BL])
    for penalty in (0.8, 1.0, 1.3, 5.0):
        process = transformers.RepetitionPenaltyLogitsProcessor(penalty)
        wanted = process(torch.tensor(ids_BL), torch.tensor(logits_BV)).numpy()
        np.testing.assert_array_equal(penalise(logits_BV, seen_BV, penalty), wanted)


@pytest.mark.parametrize("every", [1, 3, 4, 50])
def test_a_stream_ends_with_what_generate_gives_bit_for_bit(every):
    sampler = Temperature(1.5)
    whole = run(sampler=sampler)
    parts = list(run_stream(every, sampler=sampler))
    assert len(parts) == -(-10 // every)
    for number, part in enumerate(parts, 1):
        length = min(10, number * every)
        assert part.lengths.tolist() == [length] * 3
        np.testing.assert_array_equal(part.tokens[:, :length], whole.tokens[:, :length])
    np.testing.assert_array_equal(parts[-1].tokens, whole.tokens)
    np.testing.assert_array_equal(parts[-1].logprobs, whole.logprobs)


def test_a_stream_ends_early():
    sampler, same = Temperature(1.5), (np.repeat(PROMPTS[:1], 2, 0), np.full(2, 6))
    eos = run(None, *same, sampler=sampler).tokens[0].tolist()[3]
    whole = run(None, *same, sampler=sampler, eos=eos)
    parts = list(run_stream(2, *same, sampler=sampler, eos=eos))
    np.testing.assert_array_equal(parts[-1].tokens, whole.tokens)
    np.testing.assert_array_equal(parts[0].lengths, np.minimum(whole.lengths, 2))
    assert len(parts) == -(-whole.lengths.max() // 2)
    assert whole.lengths.min() < 10


def run_stream(every, prompts=PROMPTS, lengths=LENGTHS, sampler=None, eos=NEVER):
    return stream(
        make_model(),
        prompts,
        lengths,
        max_new_tokens=10,
        sampler=sampler,
        key=KEY,
        eos_id=eos,
        every=every,
    )


SOURCES = np.array([[7, 3, 2, 9, 4], [6, 1, 8, 0, 0], [5, 0, 0, 0, 0]], np.int32)
START = 2


@functools.cache
def make_translator(scan_layers=False):
    return make_model(architecture="encoder_decoder", scan_layers=scan_layers)


def translate(model=None, sources=SOURCES, segments=None, count=6, eos=NEVER, **settings):
    return generate(
        model or make_translator(),
        source_BS=sources,
        source_segment_ids=(sources != 0) * 1 if segments is None else segments,
        max_new_tokens=count,
        sampler=Greedy(),
        key=KEY,
        eos_id=eos,
        bos_id=START,
        **settings,
    )


@pytest.mark.parametrize("scan_layers", [False, True])
def test_an_encoder_decoder_continues_its_source_as_full_forwards_do(scan_layers):
    model = make_translator(scan_layers)
    out = translate(model)
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(tokens_BL):
        segments_BS = (SOURCES != 0).astype(np.int32)
        logits = nnx.merge(graphdef, state)(SOURCES, tokens_BL, segments_BS).logits
        return logits.argmax(-1), jax.nn.log_softmax(logits)

    inputs_BL = np.pad(out.tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    best_BL, logprobs_BLV = forward(inputs_BL)
    np.testing.assert_array_equal(out.tokens, best_BL)
    wanted = np.take_along_axis(np.asarray(logprobs_BLV), out.tokens[..., None], -1)[..., 0]
    np.testing.assert_allclose(out.logprobs, wanted, rtol=1e-4, atol=1e-5)
    assert len({tuple(row) for row in out.tokens.tolist()}) == 3, "sources do not matter"


def test_padding_of_a_source_does_not_matter_wherever_it_is():
    wanted = translate().tokens
    padded = np.zeros((3, 9), np.int32)
    padded[:, 3:8] = SOURCES
    segments = (padded != 0).astype(np.int32)
    garbage = np.where(segments == 1, padded, -99)
    np.testing.assert_array_equal(translate(sources=garbage, segments=segments).tokens, wanted)


def test_a_target_may_start_with_more_than_its_first_token():
    first = translate().tokens
    prompts = np.concatenate([np.full((3, 1), START), first[:, :2]], 1)
    rest = translate(prompts_BP=prompts, lengths_B=np.array([3, 2, 1]), count=4).tokens
    for row, known in enumerate((2, 1, 0)):
        np.testing.assert_array_equal(rest[row], first[row, known : known + 4])


def test_rows_have_budgets_of_their_own():
    out, free = translate(count=np.array([2, 5, 1]), pad_id=7), translate()
    assert out.lengths.tolist() == [2, 5, 1]
    for row, budget in enumerate((2, 5, 1)):
        assert out.tokens[row, :budget].tolist() == free.tokens[row, :budget].tolist()
        assert (out.tokens[row, budget:] == 7).all()


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("encoder", {}, r"model\.architecture: is encoder"),
        ("decoder", {}, "source: is given while .* decoder"),
        ("encoder_decoder", {"sources": SOURCES[0]}, "source: has shape"),
        ("encoder_decoder", {"segments": SOURCES}, "source_segment_ids: has"),
        ("encoder_decoder", {"sources": SOURCES + 9}, "source: number 0 has token"),
        ("encoder_decoder", {"sources": np.ones((3, 41))}, "source: number 0 has 41 tokens"),
    ],
)
def test_sources_that_cannot_be_used_are_refused(architecture, settings, message):
    model = make_model("learned", architecture=architecture)
    with pytest.raises(UserError, match=message):
        translate(model, **settings)


def test_an_encoder_decoder_needs_a_source():
    with pytest.raises(UserError, match="source: is missing"):
        run(make_translator())


@pytest.mark.parametrize("settings", SETTINGS_OF_HALVES, ids=str)
def test_half_precision_gives_what_a_full_pass_does(settings):
    """Kernels are turned for it on a CPU, of stacked layers and of a single row too."""
    model = builders.make_model(make_model(**settings).config, compute_dtype="bfloat16")
    kinds = [x.shape for x in jax.tree.leaves(nnx.state(model))]
    turned = [x.shape for x in jax.tree.leaves(nnx.state(for_decoding(model)))]
    for mine, other in zip(kinds, turned, strict=True):
        assert other in (mine, (*mine[:-2], *mine[-2:][::-1]))
    assert turned != kinds
    assert for_decoding(again := for_decoding(model)) is again
    out = run(model)
    one = run(model, prompts=PROMPTS[:1], lengths=LENGTHS[:1])
    assert [x.shape for x in jax.tree.leaves(nnx.state(model))] == kinds  # not the model's own
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        tokens = np.concatenate([prompt[:length], out.tokens[row]])
        logits_LV = model(tokens[None, :-1]).logits[0, length - 1 :]
        logprobs_LV = np.asarray(jax.nn.log_softmax(logits_LV))
        chosen = logprobs_LV[np.arange(len(logprobs_LV)), tokens[length:]]
        np.testing.assert_allclose(out.logprobs[row], chosen, atol=0.03)
        assert (chosen > logprobs_LV.max(1) - 0.03).all()  # greedy, but for near ties
    np.testing.assert_allclose(one.logprobs, out.logprobs[:1], atol=0.03)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.array([6, 0, 3])}, "prompt: number 1 is empty"),
        ({"lengths": np.array([6, 7, 3])}, "prompt: number 1 has length 7"),
        ({"lengths": np.array([6, 2])}, "prompts: have shape"),
        ({"prompts": PROMPTS[:0], "lengths": LENGTHS[:0]}, "prompts: have shape"),
        ({"prompts": np.full((3, 6), VOCAB)}, "prompt: number 0 has token 11"),
        ({"prompts": np.full((3, 6), -1)}, "prompt: number 0 has token -1"),
        ({"eos": VOCAB}, "eos_id: is 11"),
        ({"count": 0}, "max_new_tokens: is 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: is 0.0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty: is inf"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty: is 1e-46"),
    ],
)
def test_bad_input_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        run(**changes)
