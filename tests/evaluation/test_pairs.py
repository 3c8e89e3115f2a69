"""Minimal pairs: reading, scoring, counting."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.pairs import (
    PairScores,
    pair_records,
    pair_table,
    read_pairs,
    score_pairs,
)
from jaxformer.evaluation.texts import Reader, make_reader
from jaxformer.nn.positions.sources import Limit, document_limit
from tests import builders
from tests.training import tiny

WORDS = word_tokenizer("abcdefgh")
PAIRS = [("a b c", "a b d"), ("h g", "h g f e"), ("a a", "a a"), ("d e f g h", "d e f g a")]


def make_model():
    cfg = builders.model_config(vocab_size=11, num_layers=1, max_length=8)
    return builders.make_model(cfg, seed=2)


def reader(start=WORDS.bos_id):
    return Reader(WORDS, start, document_limit(make_model().config))


def write(path, pairs=PAIRS):
    lines = [{"sentence_good": good, "sentence_bad": bad, "UID": "x"} for good, bad in pairs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def log_probability(model, ids):
    """Of all tokens but the first, from one full forward pass."""
    graphdef, state = nnx.split(model)
    read = np.zeros((1, 8), np.int32)
    read[0, : len(ids) - 1] = ids[:-1]
    logits_LV = np.asarray(
        jax.jit(lambda tokens_1L: nnx.merge(graphdef, state)(tokens_1L).logits[0])(read), float
    )
    logprobs_LV = logits_LV - np.log(np.exp(logits_LV).sum(-1, keepdims=True))
    return sum(logprobs_LV[at, token] for at, token in enumerate(ids[1:]))


@pytest.mark.parametrize("start", [WORDS.bos_id, -1])
@pytest.mark.parametrize("batch_size", [3, 32])
def test_sentences_are_scored_whole(tmp_path, start, batch_size):
    model, before = make_model(), [start] if start >= 0 else []
    files = read_pairs(write(tmp_path / "one.jsonl"), reader(start))
    (found,) = score_pairs(model, files, batch_size=batch_size)
    for index, pair in enumerate(PAIRS):
        wanted = [log_probability(model, [*before, *WORDS.encode(text)]) for text in pair]
        np.testing.assert_allclose([found.good[index], found.bad[index]], wanted, rtol=1e-5)
    assert (found.name, found.ties) == ("one", 1)


def test_a_tie_is_wrong_and_told():
    found = [
        PairScores("x", np.array([-1.0, -2.0, -3.0, -5.0]), np.array([-2.0, -2.0, -1.0, -6.0])),
        PairScores("y", np.array([-1.0]), np.array([-2.0])),
    ]
    rows = pair_records(found)
    assert [(row["file"], row["value"], row["weight"], row["ties"]) for row in rows] == [
        ("x", 0.5, 4, 1),
        ("y", 1.0, 1, 0),
        ("all", 0.6, 5, 1),
    ]
    for row in rows:
        assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1
    assert len(pair_records(found[:1])) == 1
    table = pair_table(rows)
    assert table[0]["accuracy %"] == "50.0"
    assert table[0]["95 % interval"] == "15.0 – 85.0"  # Wilson's, of 2 in 4


def test_a_folder_has_its_files_by_name(tmp_path):
    write(tmp_path / "b.jsonl")
    write(tmp_path / "a.jsonl", PAIRS[:1])
    (tmp_path / "README.md").write_text("no pairs")
    assert [(file.name, len(file.good)) for file in read_pairs(tmp_path, reader())] == [
        ("a", 1),
        ("b", 4),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.jsonl: is empty"),
        ('{"sentence_good": "a"}\n', r"line 1: has no field 'sentence_bad'"),
        ('\n{"sentence_good": "a", "sentence_bad": 3}\n', "line 2: has no string"),
        ("[1]\n", "line 1: is not an object"),
        ("{\n", "line 1: is not JSON"),
        ('{"sentence_good": "a", "sentence_bad": "x"}\n', "line 1: holds words .* 'x'"),
        ('{"sentence_good": "a", "sentence_bad": ""}\n', "line 1: is empty"),
        (
            '{"sentence_good": "a a a a a a a a a", "sentence_bad": "a"}\n',
            r"line 1: takes 9 tokens to read, model\.max_length allows 8",
        ),
    ],
)
def test_bad_lines_are_named(tmp_path, text, message):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        read_pairs(tmp_path / "x.jsonl", reader())


def test_folders_and_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match=r"has no file \*\.jsonl"):
        read_pairs(tmp_path, reader())
    with pytest.raises(UserError, match="cannot be read"):
        read_pairs(tmp_path / "none.jsonl", reader())


def test_how_runs_and_published_models_start_a_text():
    cfg = tiny.config()
    assert make_reader(cfg, WORDS, published=False).start == (
        WORDS.bos_id if cfg.data.add_bos else -1
    )
    plain = tiny.config(data__add_bos=False, data__source="text", data__path="a.txt")
    assert make_reader(plain, WORDS, published=False).start == -1
    assert make_reader(plain, WORDS, published=True).start == WORDS.bos_id
    translator = tiny.config(**tiny.SEQ2SEQ)
    with pytest.raises(UserError, match=r"model\.architecture: is encoder_decoder"):
        make_reader(translator, WORDS, published=False)


def test_blimp_is_read(shared_data):
    """Six paradigms of 1,000 pairs each; sentences here are words, without a learned table."""
    folder = shared_data("blimp")
    texts = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    both = [json.loads(text)[f"sentence_{side}"] for text in texts for side in ("good", "bad")]
    words = word_tokenizer(sorted({word for text in both for word in text.split()}))
    files = read_pairs(folder, Reader(words, words.bos_id, Limit(0, "")))
    assert [len(file.good) for file in files] == [1000] * 6
    assert files[0].name == "anaphor_number_agreement"
    assert words.decode(files[0].bad[0][1:]) == "Susan revealed themselves."
