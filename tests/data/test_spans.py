"""Span corruption: T5's lengths, a row by hand, shares counted, a whole run over text."""

import numpy as np
import pytest

from configs import base
from jaxformer.config import RunConfig, SpanCorruptionConfig
from jaxformer.data import open_data, resolve
from jaxformer.data.blank import blank_row
from jaxformer.data.cache import open_cache
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.data.spans import SpanRows, cut_at_random, hide
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer, word_tokenizer
from jaxformer.errors import UserError

T5 = SpanCorruptionConfig(0.15, 3.0, 100)
KINDS = {"char": 0, "byte": 0, "word": 0, "bpe": 380}


def text_config(path, **changes):
    c = base.get_config()
    c.model.update(architecture="encoder_decoder", num_layers=1, d_model=8, num_heads=2)
    c.model.max_length = 32
    c.objective.kind = "span_corruption"
    c.data.update(source="text", path=str(path), length=16, pack=True)
    c.data.tokenizer.kind = "char"
    c.train.update(num_epochs=0.0, num_steps=4, batch_size=4)
    c.schedule.warmup_steps = 2
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


def test_the_lengths_are_those_of_t5():
    """Raffel et al. 2020: 512 tokens of source are 568 of text and 114 of targets."""
    assert (T5.window(512), T5.target_length(512)) == (568, 114)
    for length in range(4, 600):
        window = T5.window(length)
        sizes = [T5.lengths(tokens) for tokens in range(window + 2)]
        assert sizes[window][0] == length < sizes[window + 1][0]
        assert all(source <= length for source, _ in sizes[:-1])
        assert max(target for _, target in sizes[:-1]) == T5.target_length(length)


def test_twelve_tokens_by_hand():
    """Hidden: 'for inviting' and 'last week , friends', T5's rows end in what is hidden."""
    words = "Thank you for inviting me to your party last week , friends"
    text, sentinels = np.array(words.split(" ")), np.array(["<X>", "<Y>", "<Z>"])
    source, target = hide(text, np.array([2, 4]), np.array([2, 4]), sentinels)
    assert " ".join(source) == "Thank you <X> me to your party <Y>"
    assert " ".join(target) == "<X> for inviting <Y> last week , friends"
    source, target = hide(text, np.array([12]), np.array([0]), np.array(["<X>"]))
    assert source.tolist() == text.tolist()
    assert target.tolist() == []
    assert T5.spans(12) == (2, 1)
    assert T5.lengths(12) == (12, 4)  # 10 kept, <X>, </s>; <X>, 2 hidden, </s>


def rows_of(lengths, size, pack, cfg=T5, seed=3):
    """Rows over documents whose tokens are all different."""
    words = word_tokenizer(f"w{i}" for i in range(sum(lengths)))
    words = words.with_special([f"<extra_id_{i}>" for i in range(40)])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) + 3
    documents = [
        (np.arange(s, s + n, dtype=np.int32), n) for s, n in zip(starts, lengths, strict=True)
    ]
    cache = open_cache(None, "x", words.vocab_size, documents)
    window = cfg.window(size)
    windows = PackedRows(cache, window, seed, True, 0) if pack else DocumentRows(cache, window, 0)
    return SpanRows(windows, cfg, size, words, seed), words


def put_together(row, sentinels):
    """The window's tokens from a source and the targets, as a reader would."""
    source = row["source"][row["source_segment_ids"] > 0][:-1].tolist()
    targets = row["targets"][row["weights"] > 0][:-1].tolist()
    spans, found = {}, []
    for token in targets:
        if token in sentinels:
            spans[token] = current = []
        else:
            current.append(token)
    for token in source:
        found += spans.pop(token) if token in spans else [token]
    assert not spans
    return found


@pytest.mark.parametrize("pack", [True, False])
def test_a_row_hides_its_share_and_gives_it_all_back(pack):
    """Sources and targets together hold the window; full windows fill both rows to the last."""
    lengths = [40, 1, 2, 3, 95, 17]
    rows, words = rows_of(lengths, 32, pack)
    sentinels, window = words.sentinels().tolist(), T5.window(32)
    full, seen = 0, []
    for index in range(len(rows)):
        row = rows.row(0, index)
        text = put_together(row, sentinels)
        tokens, segments = rows._windows.window(0, index)
        assert text == tokens[segments > 0].tolist()
        hidden, spans = T5.spans(len(text))
        assert int((row["weights"] > 0).sum()) == (hidden + spans + 1 if spans else 0)
        assert np.isin(row["source"], sentinels).sum() == spans
        if spans:
            assert row["tokens"][0] == words.start_id
            inputs = row["tokens"][1 : hidden + spans + 1]
            np.testing.assert_array_equal(inputs, row["targets"][: hidden + spans])
            assert row["targets"][hidden + spans] == words.eos_id
        if len(text) == window:
            full += 1
            assert (row["source_segment_ids"] > 0).all()
            assert (row["weights"] > 0).all()
        seen += text
    assert sorted(seen) == list(range(3, 3 + sum(lengths)))
    assert full >= 1


def test_rows_are_a_function_of_seed_epoch_and_number():
    rows, _ = rows_of([500], 32, True)
    again, _ = rows_of([500], 32, True)
    other, _ = rows_of([500], 32, True, seed=4)
    for name, value in rows.row(1, 2).items():
        np.testing.assert_array_equal(value, again.row(1, 2)[name])
    assert rows.fingerprint == again.fingerprint != other.fingerprint
    static, _ = rows_of([500], 32, False)
    hidden = [static.row(epoch, 2)["source"].tolist() for epoch in range(8)]
    assert len({tuple(row) for row in hidden}) == 8  # each epoch hides others


def test_every_way_to_cut_is_as_likely_and_a_token_is_hidden_at_its_rate():
    """5 in 3 parts: 6 ways. Over 4,000 draws each has a sixth, four standard deviations wide."""
    words = np.random.Philox(key=[1, 2]).random_raw((4000, 4))
    found, counts = np.unique([cut_at_random(5, 3, w) for w in words], axis=0, return_counts=True)
    assert len(found) == 6
    assert (found.sum(1) == 5).all()
    assert np.abs(counts / 4000 - 1 / 6).max() < 4 * (5 / 36 / 4000) ** 0.5
    rows, _ = rows_of([T5.window(64)], 64, False)
    window = T5.window(64)
    hidden, spans = T5.spans(window)
    share = np.zeros(window)
    for epoch in range(1500):
        targets = rows.row(epoch, 0)["targets"]
        share[targets[(targets >= 3) & (targets < 3 + window)] - 3] += 1 / 1500
    np.testing.assert_allclose(share.sum(), hidden, rtol=1e-6)
    assert share[0] == 0  # a row begins with what is kept …
    assert share[-1] == pytest.approx(1)  # … and ends hidden, as T5's do
    assert (np.abs(share[spans:-8] - hidden / window) < 0.08).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_holds_sentinels_behind_its_vocabulary(kind, tmp_path):
    cfg = base.get_config().data.tokenizer
    cfg.update(kind=kind, vocab_size=KINDS[kind])
    cfg = text_config("a").data.tokenizer.from_config_dict(cfg)
    texts = ["the cat <extra_id_0> sat on the mat\n" * 3]
    texts = [texts[0].replace("<extra_id_0>", "x")] if kind == "word" else texts
    words = make_tokenizer(cfg, lambda: texts, lambda: texts, sentinels=7)
    assert words.kind == kind
    assert words.sentinels().tolist() == list(range(words.vocab_size - 7, words.vocab_size))
    ids = words.encode(texts[0])
    assert ids.max() < words.vocab_size - 7  # the text "<extra_id_0>" is text
    assert words.decode(ids) == (texts[0] if kind != "word" else " ".join(texts[0].split()))
    words.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (again.kind, again.fingerprint) == (kind, words.fingerprint)
    assert KINDS[kind] in (0, words.vocab_size) or words.vocab_size < KINDS[kind]


def test_a_run_of_it_resolves_and_is_refused_by_name_elsewhere(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i} of a text\n" for i in range(60)))
    cfg = text_config(path)
    data = open_data(cfg, tmp_path / "run")
    resolved = resolve(cfg, data)
    assert resolved.data.target_length == T5.target_length(16)
    row, blank = data.train.row(0, 0), blank_row(cfg)
    assert {k: (v.shape, v.dtype) for k, v in row.items()} == {
        k: (v.shape, v.dtype) for k, v in blank.items()
    }
    assert open_data(cfg, tmp_path / "run").train.fingerprint == data.train.fingerprint
    for changes, what in (
        ({"model.architecture": "decoder"}, r"objective.kind: is span_corruption while model"),
        ({"data.target_length": 9}, r"data.target_length: is 9, but rows of span_corruption have"),
        ({"objective.span_corruption.rate": 1.0}, r"span_corruption.rate: is 1.0"),
        ({"objective.span_corruption.length": 0.5}, r"span_corruption.length: is 0.5"),
        ({"data.length": 3}, r"data.length: is 3 for span_corruption"),
        (
            {"objective.span_corruption.sentinels": 1, "data.length": 32},
            r"sentinels: 1 is below the 2 spans of a row of data.length = 32",
        ),
        ({"data.tokenizer.kind": "bpe", "data.tokenizer.vocab_size": 300}, r"needs 360"),
        (
            {
                "data.streaming": True,
                "data.stream.validation_documents": 1,
                "data.tokenizer.kind": "byte",
            },
            r"data.streaming: is true while objective.kind = span_corruption",
        ),
        (
            {"data.source": "agreement", "data.path": "", "data.tokenizer.kind": "word"},
            r"is true while data.source = agreement",
        ),
    ):
        with pytest.raises(UserError, match=what):
            text_config(path, **changes)
    foreign = tmp_path / "words.json"
    word_tokenizer("abc").save(foreign)
    own = {"data.tokenizer.kind": "file", "data.tokenizer.path": str(foreign)}
    with pytest.raises(UserError, match=r"with 1 spans, the tokenizer has 0 sentinels"):
        open_data(text_config(path, **own), tmp_path / "foreign")
