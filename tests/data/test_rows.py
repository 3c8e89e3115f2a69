"""Rows of pairs and of labelled texts from caches."""

import itertools

import numpy as np
import pytest

from jaxformer.data.loader import Loader, evaluation_batches
from jaxformer.data.rows import LabelledRows, PairRows, cut, pack_pairs
from tests.data.test_packing import cache_of

RNG = np.random.default_rng(0)
SOURCES = [[*RNG.integers(4, 90, n).tolist(), 2] for n in RNG.integers(1, 9, 50)]
TARGETS = [[1, *RNG.integers(4, 90, n).tolist(), 2] for n in RNG.integers(1, 9, 50)]


def pairs(pack=True, seed: int | None = 3, lengths=(16, 20), sources=SOURCES, targets=TARGETS):
    return PairRows(cache_of(sources), cache_of(targets), lengths, pack, seed, True)


def read(rows, epoch=0):
    """Every pair found in the rows."""
    found = []
    for index in range(len(rows)):
        row = rows.row(epoch, index)
        for segment in range(1, row["segment_ids"].max() + 1):
            source = row["source"][row["source_segment_ids"] == segment].tolist()
            own = row["segment_ids"] == segment
            inputs, predicted = row["tokens"][own].tolist(), row["targets"][own].tolist()
            assert inputs[1:] == predicted[:-1]
            assert row["weights"][own].all()
            assert row["positions"][own].tolist() == list(range(own.sum()))
            found.append((source, [*inputs, predicted[-1]]))
    return found


@pytest.mark.parametrize("pack", [True, False])
def test_every_pair_once_an_epoch(pack):
    rows = pairs(pack)
    expected = list(zip(SOURCES, TARGETS, strict=True))
    assert sorted(read(rows)) == sorted(expected)
    assert rows.num_tokens == sum(len(target) - 1 for target in TARGETS)
    if not pack:
        assert read(rows) == expected
        assert len(rows) == 50


def test_packing_fills_rows_and_is_a_function_of_the_seed():
    rows, again, other = pairs(), pairs(), pairs(seed=4)
    assert read(rows) == read(again) == read(rows, epoch=5)
    assert read(rows) != read(other)
    assert rows.fingerprint == again.fingerprint != other.fingerprint
    used = max(sum(map(len, SOURCES)) / 16, sum(len(t) - 1 for t in TARGETS) / 20)
    assert len(rows) < 1.2 * used


def test_packing_in_order_keeps_neighbours_together():
    order, bounds = pack_pairs(np.array([[3, 3, 3, 1], [1, 1, 1, 1]]), np.array([7, 9]), None)
    assert [order[a:b].tolist() for a, b in itertools.pairwise(bounds)] == [
        [0, 1, 3],
        [2],
    ]
    order, bounds = pack_pairs(np.array([[1, 1, 1], [5, 5, 1]]), np.array([7, 9]), None)
    assert bounds.tolist() == [0, 2, 3]  # the target side is full first


def test_long_pairs_are_cut_and_counted(caplog):
    sources, targets = [[5, 6, 7, 8, 2], [5, 2]], [[1, 5, 6, 7, 8, 2], [1, 5, 2]]
    rows = pairs(False, None, (3, 2), sources, targets)
    row = rows.row(0, 0)
    assert row["source"].tolist() == [5, 6, 2]  # still ends
    assert (row["tokens"].tolist(), row["targets"].tolist()) == ([1, 5], [5, 6])  # does not stop
    assert (rows.num_cut, rows.num_tokens, rows.num_bytes) == (2, 4, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 2 sources have more than 3 tokens and are cut",
        "1 of 2 targets have more than 2 tokens and are cut",
    ]


def test_cut():
    ids = np.arange(5)
    assert cut(ids, 5, True).tolist() == cut(ids, 9, False).tolist() == [0, 1, 2, 3, 4]
    assert cut(ids, 3, True).tolist() == [0, 1, 4]
    assert cut(ids, 3, False).tolist() == [0, 1, 2]


TEXTS, CLASSES = cache_of([[1, 5, 2], [1, 6, 7, 8, 2], [1, 2]]), cache_of([[2], [0], [1]])


def test_classes_of_texts(caplog):
    rows = LabelledRows(TEXTS, CLASSES, 4, "sequence_classification", True)
    assert len(rows) == rows.num_tokens == 3
    assert [int(rows.row(9, i)["targets"]) for i in range(3)] == [2, 0, 1]
    assert rows.row(0, 1)["tokens"].tolist() == [1, 6, 7, 2]
    assert "1 of 3 texts" in caplog.text
    batch = Loader(rows, 2, seed=0).batch(1)
    assert (batch["tokens"].shape, batch["targets"].shape, batch["weights"].shape) == (
        (2, 4),
        (2,),
        (2,),
    )
    *_, last = evaluation_batches(rows, 2)
    assert last["weights"].tolist() == [1, 0]
    assert not last["segment_ids"][1].any()


def test_classes_of_tokens():
    labels = cache_of([[0, 3, 0], [0, 1, 0, 2, 0], [0, 0]])
    rows = LabelledRows(TEXTS, labels, 4, "token_classification", True)
    assert rows.num_tokens == 2  # the label of a token that is cut off goes with it
    row = rows.row(0, 1)
    assert row["tokens"].tolist() == [1, 6, 7, 2]
    assert (row["targets"].tolist(), row["weights"].tolist()) == ([0, 0, 0, 0], [0, 1, 0, 0])
    row = rows.row(0, 0)
    assert (row["targets"].tolist(), row["weights"].tolist()) == ([0, 2, 0, 0], [0, 1, 0, 0])
