import dataclasses

import jax
import numpy as np
import pytest

from configs import agreement, base
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.data.tasks.agreement import Agreement, agreement_tokenizer, sentence_hashes
from jaxformer.data.tasks.grammar import NOUNS, VERBS, VOCAB_SIZE, WORDS, check, sample
from jaxformer.errors import UserError

COUNT = 3000


def config(**changes) -> RunConfig:
    c = agreement.get_config()
    c.data.agreement.num_examples = COUNT
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


@pytest.fixture(scope="module")
def task() -> Agreement:
    return Agreement(config())


def ids(text: str) -> np.ndarray:
    return np.array([1, *agreement_tokenizer().encode(text), 2])


def sentences_of(rows) -> set[tuple[int, ...]]:
    pairs = zip(rows.sentences.tokens_BL, rows.sentences.lengths_B, strict=True)
    return {tuple(tokens[:n].tolist()) for tokens, n in pairs}


def test_vocabulary():
    tokenizer = agreement_tokenizer()
    assert tokenizer.vocab_size == VOCAB_SIZE == 79
    assert [tokenizer.token(i) for i in range(5)] == ["<pad>", "<s>", "</s>", "the", "that"]
    assert len(set(WORDS)) == len(WORDS) == 76
    assert (len(NOUNS), len(VERBS)) == (15, 13)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("the boy sees the dogs", ""),
        ("the angry boys near the old tree that see the girl like the cat", ""),
        ("the boy see the dogs", "verb that does not agree"),
        ("the boys near the tree sees the dog", "verb that does not agree"),
        ("the boys near the tree that sees the dog like the cat", "relative verb"),
        ("the boy near sees the dog", "preposition without a noun"),
        ("the boy that sees the angry dog likes the cat", "relative clause without an object"),
        ("the boy sees the angry dog", "no object"),
        ("the boy sees", "no object"),
        ("boy sees the dog", "no subject"),
        ("the boy sees the dog near the tree", "goes on"),
        ("the boy", "verb"),
        ("the boy that", "relative verb"),
        ("", "no subject"),
    ],
)
def test_the_checker_knows_the_grammar(text, verdict):
    found = check(ids(text))
    assert verdict in found
    assert bool(found) == bool(verdict)
    assert check(ids(text)[1:]) == "does not run from <s> to </s>"


def test_sentences_differ(task):
    # With 3 modifiers hardly two of 2,500 are equal, across the calls that draw 1,024 each too.
    examples = task.evaluation(3, 2500, seed=0)
    assert len(sentences_of(task.rows(examples))) > 2490
    assert len(sentences_of(task.train)) > 0.9 * COUNT


def test_all_sentences_are_of_the_language(task):
    for tokens in (*task.train.sentences.tokens_BL[:1000], *task.validation.sentences.tokens_BL):
        assert check(tokens) == ""


def test_sentences_are_as_long_as_the_grammar_says(task):
    lengths = task.train.sentences.lengths_B
    assert (lengths.min(), lengths.max()) == (7, 20)
    for k in (0, 2, 5):
        examples = task.evaluation(k, 1000, seed=0)
        assert examples.sentences.tokens_BL.shape == (1000, 8 + 4 * k)
        assert examples.sentences.lengths_B.max() == 8 + 4 * k
        assert examples.sentences.lengths_B.min() >= 7 + 3 * k
        words = [[WORDS[t - 3] for t in row if t > 2] for row in examples.sentences.tokens_BL]
        clauses = [len([w for w in row if w in sum(VERBS, ())]) - 1 for row in words]
        assert 0.4 * k <= np.mean(clauses) <= 0.6 * k  # half of the modifiers are clauses


def shares_of_modifiers(rows):
    words = np.array(["<pad>", "<s>", "</s>", *WORDS])
    starts = np.isin(words, ["that", "above", "behind", "beside", "beyond", "by", "near"])
    starts |= np.isin(words, ["under", "with"])
    modifiers = starts[rows.sentences.tokens_BL].sum(axis=1)
    return np.bincount(modifiers, minlength=4) / len(modifiers)


def test_modifiers_have_the_weights_that_are_asked_for():
    weights = {"data.agreement.max_modifiers": 1, "data.agreement.modifier_weights": (3.0, 2.0)}
    task = Agreement(config(**weights))
    for rows in (task.train, task.validation):
        np.testing.assert_allclose(shares_of_modifiers(rows), [0.6, 0.4, 0, 0], atol=0.03)


def test_modifiers_are_uniform_and_numbers_balanced(task):
    np.testing.assert_allclose(shares_of_modifiers(task.train), 0.25, atol=0.03)
    assert abs(task.train.sentences.plural_B.mean() - 0.5) < 0.03


def test_questions(task):
    tokenizer = agreement_tokenizer()
    number = {form: n for pair in VERBS for n, form in enumerate(pair)}
    noun = {form: n for pair in NOUNS for n, form in enumerate(pair)}
    examples = task.evaluation(4, 200, seed=3)
    for i in range(200):
        prefix = tokenizer.decode(examples.prefixes_BP[i]).split()
        correct = tokenizer.token(examples.correct_B[i])
        wrong = tokenizer.token(examples.wrong_B[i])
        subject = next(noun[w] for w in prefix if w in noun)
        assert number[correct] == subject == examples.sentences.plural_B[i]
        assert number[wrong] == 1 - subject
        assert (correct, wrong) in VERBS or (wrong, correct) in VERBS
        assert len(prefix) + 1 == examples.prefix_lengths_B[i]  # <s> belongs to it
        assert examples.prefixes_BP[i, 0] == 1
        whole = tokenizer.decode(examples.sentences.tokens_BL[i]).split()
        assert whole[: len(prefix) + 1] == [*prefix, correct]


def test_nothing_held_out_is_trained_on(task):
    trained = sentences_of(task.train)
    assert len(sentences_of(task.validation) & trained) == 0
    for k in (0, 1, 3):  # one in 170 of the sentences with k = 0 is a training sentence
        examples = task.evaluation(k, 1000, seed=1 + k)
        assert len(sentences_of(task.rows(examples)) & trained) == 0
    # … and without the rule some would be: 3,000 sentences are a large part of those with k = 0.
    many = Agreement(
        config(**{"data.agreement.num_examples": 8000, "data.agreement.max_modifiers": 0})
    )
    assert len(sentences_of(many.validation) & sentences_of(many.train)) == 0


def test_too_many_sentences_are_refused(monkeypatch):
    monkeypatch.setattr("jaxformer.data.tasks.agreement.MAX_ROUNDS", 2)
    with pytest.raises(UserError, match="num_examples"):
        Agreement(
            config(**{"data.agreement.max_modifiers": 0, "data.agreement.num_examples": 30000})
        )


def test_hash_ignores_padding():
    a = np.array([[1, 3, 5, 2]], np.int32)
    assert sentence_hashes(a) == sentence_hashes(np.pad(a, ((0, 0), (0, 9))))
    assert sentence_hashes(a) != sentence_hashes(a[:, [0, 2, 1, 3]])


def test_a_function_of_the_seed(task):
    again, other = Agreement(config()), Agreement(config(seed=1))
    np.testing.assert_array_equal(again.train.sentences.tokens_BL, task.train.sentences.tokens_BL)
    assert again.train.fingerprint == task.train.fingerprint != other.train.fingerprint
    a, b = task.evaluation(2, 50, seed=0), again.evaluation(2, 50, seed=0)
    np.testing.assert_array_equal(a.prefixes_BP, b.prefixes_BP)
    c = task.evaluation(2, 50, seed=1)
    assert (a.prefixes_BP != c.prefixes_BP).any()
    # More training sentences begin with the same ones.
    more = Agreement(config(**{"data.agreement.num_examples": COUNT + 100}))
    np.testing.assert_array_equal(
        more.train.sentences.tokens_BL[:COUNT], task.train.sentences.tokens_BL
    )


def test_room_for_more_modifiers_changes_only_the_padding():
    draw = jax.jit(sample, static_argnames="max_modifiers")
    for i, k in enumerate((0, 1, 3)):
        key = jax.random.key(i)
        narrow, wide = draw(key, k, max_modifiers=3), draw(key, k, max_modifiers=7)
        np.testing.assert_array_equal(narrow.tokens, wide.tokens[:20])
        assert not np.asarray(wide.tokens[20:]).any()
        assert narrow.length == wide.length


def test_rows(task):
    row = task.train.row(5, 7)
    tokens, length = task.train.sentences.tokens_BL[7], task.train.sentences.lengths_B[7]
    assert row["tokens"].shape == (19,)
    assert row["tokens"][: length - 1].tolist() == tokens[: length - 1].tolist()
    assert row["targets"][: length - 1].tolist() == tokens[1:length].tolist()
    assert row["targets"][length - 2] == 2  # </s> is learned
    assert row["segment_ids"].tolist() == [1] * (length - 1) + [0] * (20 - length)
    assert row["weights"].sum() == length - 1
    assert row["positions"][: length - 1].tolist() == list(range(length - 1))
    total = sum(task.train.row(0, i)["weights"].sum() for i in range(COUNT))
    assert task.train.num_tokens == total


def test_rows_too_short_are_refused_with_the_numbers():
    with pytest.raises(
        UserError, match=r"data\.length: 18 is too short .* 20 tokens, .* 19 inputs"
    ):
        Agreement(config(**{"data.length": 18}))
    Agreement(config(**{"data.length": 15, "data.agreement.max_modifiers": 2}))


def test_packing_and_other_tokenizers_are_refused():
    with pytest.raises(UserError, match=r"data\.pack"):
        config(**{"data.pack": True})
    with pytest.raises(UserError, match=r"data\.tokenizer\.kind"):
        config(**{"data.tokenizer.kind": "char"})


def test_demo_config():
    cfg = RunConfig.from_config_dict(agreement.get_config())
    demo = cfg.resolve(vocab_size=VOCAB_SIZE, steps_per_epoch=20000 / 64)
    assert demo.train.num_steps == 2500
    assert (demo.data.length, demo.model.max_length) == (19, 64)
    assert demo.model.vocab_size + demo.model.max_length == 143
    assert (demo.schedule.peak_value, demo.schedule.warmup_steps) == (3e-3, 200)
    RunConfig.from_config_dict(base.get_config())


def test_open_saves_the_tokenizer(tmp_path):
    data = open_data(config(), tmp_path)
    assert data.task is not None
    assert (tmp_path / "tokenizer.json").exists()
    assert data.tokenizer.fingerprint == open_data(config(), tmp_path).tokenizer.fingerprint
    assert len(data.train) == COUNT
    assert len(data.validation) == 1000
    assert dataclasses.is_dataclass(data)
