import itertools
from collections import Counter

import numpy as np
import pytest

from jaxformer.data.cache import TokenCache, open_cache
from jaxformer.data.packing import DocumentRows, PackedRows

BOS, EOS = 1, 2


def cache_of(documents: list[list[int]]) -> TokenCache:
    return open_cache(None, "test", 50_000, [(np.array(d, np.int32), len(d)) for d in documents])


def random_documents(count: int = 40, seed: int = 0) -> list[list[int]]:
    """Documents of 2 … 29 tokens, each token used once in all, so pairs tell their place."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 28, count)
    fresh = iter(range(3, 10_000))
    return [[BOS, *(next(fresh) for _ in range(n)), EOS] for n in lengths]


def supervised_pairs(source, epoch: int) -> Counter:
    rows = [source.row(epoch, i) for i in range(len(source))]
    pairs = Counter()
    for row in rows:
        used = row["weights"] > 0
        pairs.update(zip(row["tokens"][used].tolist(), row["targets"][used].tolist(), strict=True))
    return pairs


def test_literal_rows_without_shuffle():
    source = PackedRows(cache_of([[1, 5, 6, 2], [1, 7, 2]]), length=3, seed=0, shuffle=False)
    assert len(source) == 3
    rows = [source.row(0, i) for i in range(3)]
    assert [r["tokens"].tolist() for r in rows] == [[1, 5, 6], [2, 1, 7], [2, 0, 0]]
    assert [r["targets"].tolist() for r in rows] == [[5, 6, 2], [0, 7, 2], [0, 0, 0]]
    assert [r["weights"].tolist() for r in rows] == [[1, 1, 1], [0, 1, 1], [0, 0, 0]]
    assert [r["segment_ids"].tolist() for r in rows] == [[1, 1, 1], [1, 2, 2], [1, 0, 0]]
    assert [r["positions"].tolist() for r in rows] == [[0, 1, 2], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("length", [1, 7, 16, 64])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_every_pair_of_every_document_once_an_epoch(length, epoch):
    documents = random_documents()
    expected = Counter(pair for d in documents for pair in itertools.pairwise(d))
    cache = cache_of(documents)
    for source in (
        PackedRows(cache, length, seed=3, shuffle=True),
        PackedRows(cache, length, seed=3, shuffle=False),
        DocumentRows(cache, length),
    ):
        assert supervised_pairs(source, epoch) == expected
        assert source.num_tokens == expected.total()


def test_segments_are_documents_and_positions_restart():
    documents = random_documents()
    where = {t: (d, i) for d, doc in enumerate(documents) for i, t in enumerate(doc) if t > 2}
    source = PackedRows(cache_of(documents), 32, seed=1, shuffle=True)
    for index in range(len(source)):
        row = source.row(2, index)
        inside = (row["tokens"] > 2) & (row["segment_ids"] > 0)
        ids = row["segment_ids"][row["segment_ids"] > 0]
        assert ids[0] == 1
        assert set(np.diff(ids)) <= {0, 1}
        place = [where[t] for t in row["tokens"][inside].tolist()]
        pairs = set(zip(row["segment_ids"][inside].tolist(), (d for d, _ in place), strict=True))
        assert len(pairs) == len({s for s, _ in pairs}) == len({d for _, d in pairs})
        # Beyond the first document of a row, which may be cut, a position is the place in it.
        later = row["segment_ids"][inside] > 1
        positions = row["positions"][inside][later].tolist()
        assert positions == [i for (_, i), is_later in zip(place, later, strict=True) if is_later]
        first = row["positions"][row["segment_ids"] == 1].tolist()
        assert first == list(range(len(first)))


def test_epochs_differ_in_order_and_offset_and_repeat_exactly():
    source = PackedRows(cache_of(random_documents()), 16, seed=0, shuffle=True)
    firsts = [source.row(e, 0)["tokens"].tolist() for e in range(6)]
    assert len({tuple(f) for f in firsts}) == 6
    fresh = PackedRows(cache_of(random_documents()), 16, seed=0, shuffle=True)
    assert [fresh.row(e, 0)["tokens"].tolist() for e in (5, 0, 3)] == [
        firsts[5],
        firsts[0],
        firsts[3],
    ]
    other = PackedRows(cache_of(random_documents()), 16, seed=1, shuffle=True)
    assert other.row(0, 0)["tokens"].tolist() != firsts[0]
    assert len({source._epoch(e).offset for e in range(40)}) > 8


def test_single_document_starts_at_another_offset_each_epoch():
    document = [BOS, *range(3, 203), EOS]
    source = PackedRows(cache_of([document]), 16, seed=0, shuffle=True)
    starts = [int(source.row(e, 0)["tokens"][0]) for e in range(8)]
    assert len(set(starts)) > 4
    assert max(starts) < 3 + 16
    expected = Counter(itertools.pairwise(document))
    assert all(supervised_pairs(source, e) == expected for e in range(4))


def test_evaluation_order_is_that_of_the_documents():
    documents = random_documents()
    source = PackedRows(cache_of(documents), 16, seed=0, shuffle=False)
    rows = [source.row(9, i) for i in range(len(source))]
    read = np.concatenate([r["tokens"][r["segment_ids"] > 0] for r in rows])
    joined = [t for d in documents for t in d]
    assert read.tolist() in (joined, joined[:-1])  # a last token alone in its row is no input


def test_one_document_a_row():
    source = DocumentRows(cache_of([[1, 5, 2], [4], [1, 5, 6, 7, 8, 9, 2]]), length=3)
    assert len(source) == 3  # a document of one token has nothing to predict
    rows = [source.row(0, i) for i in range(3)]
    assert [r["tokens"].tolist() for r in rows] == [[1, 5, 0], [1, 5, 6], [7, 8, 9]]
    assert [r["targets"].tolist() for r in rows] == [[5, 2, 0], [5, 6, 7], [8, 9, 2]]
    assert [r["segment_ids"].tolist() for r in rows] == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert [r["positions"].tolist() for r in rows] == [[0, 1, 0], [0, 1, 2], [0, 1, 2]]


def test_fingerprint_tells_what_the_rows_depend_on():
    cache = cache_of(random_documents())
    made = [PackedRows(cache, 16, 0, True), PackedRows(cache, 16, 1, True)]
    made += [PackedRows(cache, 8, 0, True), PackedRows(cache, 16, 0, False)]
    assert len({s.fingerprint for s in [*made, DocumentRows(cache, 16)]}) == 5
