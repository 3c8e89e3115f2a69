import itertools

import numpy as np
import pytest

from jaxformer.data.loader import Loader, evaluation_batches
from jaxformer.errors import UserError


class Counting:
    """Row i of epoch e holds e and i."""

    num_tokens, num_bytes, fingerprint = 0, 0, "counting"

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        assert 0 <= index < self.count
        ints = {n: np.full(3, index, np.int32) for n in ("targets", "segment_ids", "positions")}
        return {
            "tokens": np.array([epoch, index, 7], np.int32),
            "weights": np.ones(3, np.float32),
            **ints,
        }


def take(loader: Loader, count: int) -> list[dict[str, np.ndarray]]:
    batches = list(itertools.islice(loader, count))
    loader.close()
    return batches


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name])


def rows_of(batches) -> list[tuple[int, int]]:
    return [tuple(row[:2]) for batch in batches for row in batch["tokens"].tolist()]


@pytest.mark.parametrize(("count", "batch_size"), [(10, 4), (3, 8), (1, 2), (64, 64), (7, 1)])
def test_each_epoch_is_a_permutation_and_epochs_differ(count, batch_size):
    epochs = 6
    seen = rows_of(take(Loader(Counting(count), batch_size, 0), -(-epochs * count // batch_size)))
    orders = []
    for epoch in range(epochs):
        part = seen[epoch * count : (epoch + 1) * count]
        assert {e for e, _ in part} == {epoch}
        assert sorted(i for _, i in part) == list(range(count))
        orders.append(tuple(i for _, i in part))
    if count > 4:
        assert len(set(orders)) == epochs
        assert tuple(range(count)) not in orders


def test_any_start_is_the_same_stream():
    reference = take(Loader(Counting(11), 4, seed=5), 12)
    for start in (0, 1, 2, 3, 7):  # step 2 straddles epochs 0 and 1
        resumed = Loader(Counting(11), 4, seed=5, start_step=start)
        for offset, batch in enumerate(take(resumed, 4)):
            assert_equal(batch, reference[start + offset])
        assert resumed.step == start + 4
    random_access = Loader(Counting(11), 4, seed=5)
    for step in (11, 0, 6):
        assert_equal(random_access.batch(step), reference[step])


def test_seeds_differ():
    a, b = (rows_of(take(Loader(Counting(50), 10, seed), 5)) for seed in (0, 1))
    assert a != b


@pytest.mark.parametrize("processes", [2, 3, 6])
def test_processes_share_the_same_global_batch(processes):
    whole = Loader(Counting(11), 6, seed=2)
    parts = [Loader(Counting(11), 6, 2, 0, p, processes) for p in range(processes)]
    for step in range(8):
        batches = [part.batch(step) for part in parts]
        joined = {n: np.concatenate([b[n] for b in batches]) for n in batches[0]}
        assert_equal(joined, whole.batch(step))
        assert [part.batch_ids(step) for part in parts] == [whole.batch_ids(step)] * processes
    for part in parts:
        part.close()


def test_batch_ids_name_epoch_and_row():
    loader = Loader(Counting(5), 4, seed=0)
    ids = [i for step in range(10) for i in loader.batch_ids(step)]
    assert len(set(ids)) == len(ids) == 40
    read = rows_of([loader.batch(step) for step in range(10)])
    assert [divmod(i, 5) for i in ids] == read


def test_row_ordinals_wrap_at_31_bits():
    loader = Loader(Counting(5), 4, seed=0)
    assert loader.batch(3)["rows"].tolist() == [12, 13, 14, 15]
    step = 2**29 - 1
    assert loader.batch(step)["rows"].tolist() == [2**31 - 4, 2**31 - 3, 2**31 - 2, 2**31 - 1]
    late = loader.batch(step + 1)
    assert late["rows"].tolist() == [0, 1, 2, 3]
    assert late["rows"].dtype == np.int32


def test_batch_that_processes_cannot_share_is_refused():
    with pytest.raises(UserError, match=r"train\.batch_size: 6 rows .* by 4 processes"):
        Loader(Counting(11), 6, 0, 0, 0, 4)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 16])
def test_evaluation_reads_every_row_once_in_order(batch_size):
    batches = list(evaluation_batches(Counting(10), batch_size))
    assert {b["tokens"].shape for b in batches} == {(batch_size, 3)}
    real = [b["weights"].any(axis=1) for b in batches]
    read = np.concatenate([b["tokens"][r, 1] for b, r in zip(batches, real, strict=True)])
    assert read.tolist() == list(range(10))
    filler = np.concatenate([b["segment_ids"][~r] for b, r in zip(batches, real, strict=True)])
    assert len(filler) == -10 % batch_size
    assert not filler.any()


def test_evaluation_of_some_rows_and_by_processes():
    batches = list(evaluation_batches(Counting(10), 4, max_rows=5))
    assert [b["weights"].any(axis=1).tolist() for b in batches] == [
        [True] * 4,
        [True] + [False] * 3,
    ]
    assert len(list(evaluation_batches(Counting(10), 4, max_rows=50))) == 3
    parts = [list(evaluation_batches(Counting(10), 4, 5, p, 2)) for p in range(2)]
    for whole, *shares in zip(batches, *parts, strict=True):
        assert_equal({n: np.concatenate([s[n] for s in shares]) for n in whole}, whole)
