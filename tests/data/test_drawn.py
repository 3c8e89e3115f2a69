"""What is hidden, and where prefixes end, by (seed, epoch, row)."""

import numpy as np
import pytest

from configs import masked_lm
from jaxformer.config import MaskedLmConfig, RunConfig
from jaxformer.data import open_data
from jaxformer.data.drawn import MaskedRows, PrefixRows
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from tests.data.test_packing import cache_of

WORDS = [f"w{i}" for i in range(60)]
TOKENIZER = word_tokenizer(WORDS, ["<pad>", "<s>", "</s>", "<mask>"])
SHARES = MaskedLmConfig(0.15, 0.8, 0.1)


def documents(count=40, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 40, count)
    return [[1, *rng.integers(4, TOKENIZER.vocab_size, n).tolist(), 2] for n in sizes]


def masked(pack=True, seed=3, length=16, cfg=SHARES):
    made = cache_of(documents())
    windows = PackedRows(made, length, seed, True, 0) if pack else DocumentRows(made, length, 0)
    return MaskedRows(windows, cfg, TOKENIZER, seed), windows


def same(a, b):
    return all((a[name] == b[name]).all() for name in a)


@pytest.mark.parametrize("make", [lambda: masked()[0], lambda: masked(False)[0]])
def test_rows_are_pure_and_epochs_differ(make):
    first, second = make(), make()
    second.row(5, 1)  # what was read before does not matter
    assert first.fingerprint == second.fingerprint
    assert all(same(first.row(2, i), second.row(2, i)) for i in (7, 0, 7))
    assert any((first.row(0, i)["weights"] != first.row(1, i)["weights"]).any() for i in range(4))
    assert not same(first.row(0, 0), masked(seed=4)[0].row(0, 0))


@pytest.mark.parametrize("pack", [True, False])
def test_targets_and_inputs_put_together_are_the_text(pack):
    rows, windows = masked(pack)
    for index in range(len(rows)):
        row, (tokens, segments) = rows.row(1, index), windows.window(1, index)
        chosen = row["weights"] > 0
        np.testing.assert_array_equal(np.where(chosen, row["targets"], row["tokens"]), tokens)
        np.testing.assert_array_equal(row["segment_ids"], segments)
        assert not np.isin(row["targets"][chosen], [0, 1, 2, 3]).any()
        ordinary = int((tokens >= 4).sum())
        assert chosen.sum() == min(ordinary, max(1, round(0.15 * ordinary)))


def test_documents_are_whole_without_overlap():
    _, windows = masked(False)
    found = [windows.window(0, i) for i in range(len(windows))]
    text = np.concatenate([tokens[segments > 0] for tokens, segments in found])
    assert text.tolist() == [token for document in documents() for token in document]


def test_shares_of_mask_random_and_kept():
    """10,000 chosen tokens: 80 / 10 / 10 within four standard deviations."""
    rows, windows = masked(length=32)
    counts, chosen_total = np.zeros(3), 0
    for epoch in range(60):
        for index in range(len(rows)):
            row, (tokens, _) = rows.row(epoch, index), windows.window(epoch, index)
            chosen = row["weights"] > 0
            shown, truth = row["tokens"][chosen], tokens[chosen]
            counts += [(shown == 3).sum(), ((shown != 3) & (shown != truth)).sum(),
                       (shown == truth).sum()]  # fmt: skip
            chosen_total += chosen.sum()
    shares, expected = counts / chosen_total, np.array([0.8, 0.1 * 59 / 60, 0.1 + 0.1 / 60])
    assert chosen_total > 6000
    tolerance = 4 * np.sqrt(expected * (1 - expected) / chosen_total)
    assert (np.abs(shares - expected) < tolerance).all(), shares


def prefixed(seed=3):
    return PrefixRows(PackedRows(cache_of(documents()), 16, seed, True), seed)


def test_prefixes_are_pure_and_uniform():
    rows, again = prefixed(), prefixed()
    again.row(9, 2)
    assert all(same(rows.row(e, i), again.row(e, i)) for e in (0, 1) for i in range(5))
    assert not (rows.row(0, 0)["prefix"] == prefixed(4).row(0, 0)["prefix"]).all()
    one = PrefixRows(DocumentRows(cache_of([[1, *range(4, 12), 2]]), 9), 0)
    lengths = [int(one.row(epoch, 0)["prefix"].sum()) for epoch in range(900)]
    counts = np.bincount(lengths, minlength=10)
    assert counts[0] == 0
    assert (np.abs(counts[1:] - 100) < 40).all()  # four standard deviations


def test_expected_number_of_supervised_tokens():
    rows = prefixed()
    found = np.mean(
        [sum(rows.row(epoch, i)["weights"].sum() for i in range(len(rows))) for epoch in range(20)]
    )
    assert found == pytest.approx(rows.num_tokens, rel=0.1)
    hidden = masked()[0]
    found = sum(hidden.row(0, i)["weights"].sum() for i in range(len(hidden)))
    assert found == pytest.approx(hidden.num_tokens, rel=0.25)  # special tokens, rounding


def config(path, **changes):
    c = masked_lm.get_config()
    c.data.path = str(path)
    c.data.length = 16
    c.data.tokenizer.vocab_size = 300
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i} of a text with words\n" for i in range(100)))
    return path


@pytest.mark.parametrize(("kind", "size"), [("bpe", 300), ("char", 0), ("byte", 0), ("word", 0)])
def test_tokenizers_for_it_have_a_mask(path, tmp_path, kind, size):
    changes = {"data.tokenizer.kind": kind, "data.tokenizer.vocab_size": size}
    cfg = config(path, **changes)
    data = open_data(cfg, tmp_path / "run")
    assert data.tokenizer.kind == kind
    assert (data.tokenizer.mask_id, data.tokenizer.token(3)) == (3, "<mask>")
    again = open_data(cfg, tmp_path / "run")
    assert again.train.fingerprint == data.train.fingerprint
    assert same(again.train.row(1, 2), data.train.row(1, 2))
    assert data.tokenizer.decode(data.tokenizer.encode("line 5")) == "line 5"


def test_a_tokenizer_without_a_mask_is_refused(path, tmp_path):
    open_data(config(path), tmp_path / "run").tokenizer.save(tmp_path / "with.json")
    plain = {"objective.kind": "causal_lm", "model.architecture": "decoder"}
    plain |= {"model.head.transform": False}
    open_data(config(path, **plain), tmp_path / "plain").tokenizer.save(tmp_path / "without.json")
    (tmp_path / "plain" / "config.json").touch()  # as training does once nothing is refused
    file = {"data.tokenizer.kind": "file", "data.tokenizer.vocab_size": 0}
    open_data(config(path, **file, **{"data.tokenizer.path": str(tmp_path / "with.json")}), None)
    without = config(path, **file, **{"data.tokenizer.path": str(tmp_path / "without.json")})
    with pytest.raises(UserError, match=r"objective\.kind: is masked_lm but the tokenizer has no"):
        open_data(without, None)
    with pytest.raises(UserError, match="has no <mask>"):  # a workdir that was another objective's
        open_data(config(path), tmp_path / "plain")
