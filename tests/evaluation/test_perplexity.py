"""Perplexity in windows against NumPy, a window at a time."""

import math
import types

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.perplexity import (
    Cut,
    make_cut,
    open_text,
    score_text,
    text_records,
    text_table,
    windows,
)
from jaxformer.evaluation.texts import Reader
from jaxformer.nn.positions.sources import document_limit
from tests import builders

WORDS = word_tokenizer("abcdefgh")
TEXT = "a b c d e f g h h g f e d c b a a c e g b d f h a a b b c"


def make_model(position="rope", max_length=16):
    cfg = builders.model_config(
        **{"position.kind": position}, vocab_size=11, num_layers=1, max_length=max_length
    )
    return builders.make_model(cfg, seed=2)


def reader(model, start=WORDS.bos_id):
    return Reader(WORDS, start, document_limit(model.config))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_windows_score_each_token_once():
    assert windows(11, Cut(5, 5)) == [(0, 1, 6), (5, 6, 11)]
    assert windows(12, Cut(5, 5)) == [(0, 1, 6), (5, 6, 11), (10, 11, 12)]
    assert windows(10, Cut(5, 2)) == [(0, 1, 6), (2, 6, 8), (4, 8, 10)]
    assert windows(2, Cut(5, 2)) == [(0, 1, 2)]
    for size in range(2, 40):
        for window in (1, 2, 3, 7, 50):
            for stride in range(1, window + 1):
                found = windows(size, Cut(window, stride))
                scored = [at for _, first, end in found for at in range(first, end)]
                assert scored == list(range(1, size))
                for start, first, end in found:
                    assert start < first < end <= start + window + 1


def oracle(model, ids, window, stride):
    """(nats, right) of each token but the first, from the last window that reaches it."""
    graphdef, state = nnx.split(model)
    run = jax.jit(lambda tokens_1L: nnx.merge(graphdef, state)(tokens_1L).logits[0])
    nats, right, start = {}, {}, 0
    while len(nats) < len(ids) - 1:
        inputs = np.zeros((1, window), np.int32)
        part = ids[start : start + window]
        inputs[0, : len(part)] = part
        logits_LV = np.asarray(run(inputs), np.float64)
        for index in range(window):
            target = start + index + 1
            if target < len(ids) and target not in nats:
                shifted_V = logits_LV[index] - logits_LV[index].max()
                nats[target] = math.log(np.exp(shifted_V).sum()) - shifted_V[ids[target]]
                right[target] = logits_LV[index].argmax() == ids[target]
        start += stride
    assert sorted(nats) == list(range(1, len(ids)))
    return sum(nats.values()), sum(right.values())


@pytest.mark.parametrize(
    ("position", "window", "stride"),
    [("rope", 8, 8), ("rope", 8, 3), ("learned", 16, 5), ("rope", 40, 40)],
)
def test_sums_are_numpys_for_any_batch_size(path, position, window, stride):
    model = make_model(position)
    text = open_text(path, reader(model))
    ids = [WORDS.bos_id, *WORDS.encode(TEXT)]
    nats, right = oracle(model, ids, window, stride)
    for batch_size in (1, 3, 32):
        *_, found = score_text(model, text, Cut(window, stride), batch_size=batch_size)
        assert found.nats == pytest.approx(nats, rel=1e-6)
        assert (found.num_tokens, found.num_right) == (len(ids) - 1, right)


def test_all_batches_are_told_of_and_the_last_has_the_whole(path):
    model = make_model()
    text = open_text(path, reader(model))
    found = list(score_text(model, text, Cut(8, 8), batch_size=1))
    assert len(found) == 4
    assert [one.num_tokens for one in found] == [5, 13, 21, 29]  # the shortest window first


def test_metrics_by_hand(path):
    model = make_model()
    text = open_text(path, reader(model))
    assert (text.num_words, text.num_bytes) == (29, len(TEXT))
    found = types.SimpleNamespace(nats=58.0, num_tokens=29, num_right=7)
    rows = {row["metric"]: row for row in text_records(found, text)}
    assert rows["loss"]["value"] == 2.0
    assert rows["perplexity"]["value"] == pytest.approx(math.e**2)
    assert rows["word_perplexity"]["value"] == pytest.approx(math.e**2)
    assert rows["bits_per_byte"]["value"] == pytest.approx(58 / math.log(2) / len(TEXT))
    assert rows["accuracy"]["value"] == pytest.approx(7 / 29)
    table = text_table([{"positions": "trained"} | row for row in rows.values()])
    assert table[3]["of"] == f"{len(TEXT)} bytes"


def test_without_a_start_the_first_token_is_read_only(path):
    model = make_model()
    text = open_text(path, reader(model, -1))
    assert text.ids.tolist() == WORDS.encode(TEXT).tolist()
    *_, found = score_text(model, text, Cut(8, 8), batch_size=32)
    assert found.num_tokens == 28
    assert text.num_bytes == len(TEXT) - 1


def test_protocols(path):
    learned, rope = make_model("learned").config, make_model().config
    assert make_cut(rope, None, None, 24) == Cut(24, 24)
    assert make_cut(learned, None, 3, 24) == Cut(16, 3)
    assert make_cut(rope, 50, 10, 24) == Cut(50, 10)
    with pytest.raises(UserError, match=r"--window: is 17, model\.max_length allows 16"):
        make_cut(learned, 17, None, 24)
    with pytest.raises(UserError, match="--stride: is 9, above the window of 8"):
        make_cut(rope, 8, 9, 24)


def test_texts_without_a_score_are_refused(tmp_path):
    model, path = make_model(), tmp_path / "text.txt"
    with pytest.raises(UserError, match=r"text\.txt: cannot be read"):
        open_text(path, reader(model))
    path.write_text("")
    with pytest.raises(UserError, match=r"text\.txt: is empty"):
        open_text(path, reader(model))
    path.write_text("a")
    open_text(path, reader(model))
    with pytest.raises(UserError, match=r"text\.txt: is a text of one token"):
        open_text(path, reader(model, -1))
    path.write_text("a zebra")
    with pytest.raises(UserError, match=r"text\.txt: holds words .* 'zebra'"):
        open_text(path, reader(model))
