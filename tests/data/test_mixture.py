import json
import logging
from collections import Counter, defaultdict

import numpy as np
import pytest

from configs import text
from jaxformer.config import RunConfig
from jaxformer.data import describe, open_data, resolve
from jaxformer.data.loader import Loader, evaluation_batches
from jaxformer.data.mixture import JoinedRows, MixedRows, mix, rows_of_each
from jaxformer.errors import UserError


class Numbered:
    """Row i of epoch e of source s holds s, e and i."""

    num_bytes = 0

    def __init__(self, source: int, count: int):
        self.source, self.count, self.num_tokens = source, count, 3 * count
        self.fingerprint = f"numbered {source} {count}"

    def __len__(self) -> int:
        return self.count

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        assert 0 <= index < self.count
        return {"tokens": np.array([self.source, epoch, index], np.int32)}


def mixed(sizes, weights=(), end="repeat", seed=0) -> MixedRows:
    sources = [Numbered(s, n) for s, n in enumerate(sizes)]
    return mix(sources, [f"source {s}" for s in range(len(sizes))], weights, end, seed)


def batched(items, size: int) -> list[tuple]:
    return [tuple(items[i : i + size]) for i in range(0, len(items), size)]


def read(source, count: int, batch_size: int = 4, seed: int = 0) -> list[tuple[int, int, int]]:
    loader = Loader(source, batch_size, seed)
    steps = (loader.batch(step) for step in range(-(-count // batch_size)))
    return [tuple(row) for batch in steps for row in batch["tokens"].tolist()][:count]


@pytest.mark.parametrize(
    ("sizes", "weights", "end", "counts"),
    [
        ((10, 1000), (2.0, 1.0), "repeat", [2000, 1000]),
        ((10, 1000), (2.0, 1.0), "stop", [10, 5]),
        ((7, 3), (0.7, 0.3), "repeat", [7, 3]),  # 0.7 / (0.7 + 0.3) is not 0.7 in binary
        ((7, 3), (0.7, 0.3), "stop", [7, 3]),
        ((7, 3, 5), (), "repeat", [7, 3, 5]),
        ((7, 3, 5), (), "stop", [7, 3, 5]),
        ((4, 4, 4), (1.0, 1.0, 0.5), "repeat", [8, 8, 4]),
        ((4, 4, 4), (1.0, 1.0, 0.5), "stop", [4, 4, 2]),
        ((5, 5), (1.0, 2.0), "stop", [2, 5]),  # 7 rows: 2 1/3 and 4 2/3
        ((9,), (3.0,), "stop", [9]),
    ],
)
def test_rows_of_each_source(sizes, weights, end, counts):
    assert rows_of_each(sizes, weights, end) == counts


def test_counts_for_random_sizes_and_weights():
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 6))
        sizes = rng.integers(1, 300, count).tolist()
        weights = [round(float(w), 3) for w in rng.uniform(0.05, 5, count)]
        for end in ("repeat", "stop"):
            found = np.array(rows_of_each(sizes, weights, end))
            asked = found.sum() * np.array(weights) / sum(weights)
            assert np.abs(found - asked).max() < 1
            if end == "repeat":  # all of every source, of one no more than that
                assert (found >= sizes).all()
                assert (found - np.array(sizes)).min() <= 1
            else:  # nothing twice, and one is used up
                assert (found <= sizes).all()
                assert (np.array(sizes) - found).min() <= 1


@pytest.mark.parametrize("weights", [(), (1.0, 1.0, 1.0), (5.0, 1.0, 0.25)])
def test_repeated_sources_are_walked_in_whole_shuffled_epochs(weights):
    sizes, seen = (11, 3, 6), defaultdict(list)
    source = mixed(sizes, weights)
    for s, epoch, row in read(source, 5 * len(source)):
        seen[s].append((epoch, row))
    orders = set()
    for s, size in enumerate(sizes):
        assert len(seen[s]) == 5 * source.counts[s] >= 5 * size
        for number, part in enumerate(batched(seen[s], size)):
            assert {epoch for epoch, _ in part} == {number}
            rows = [row for _, row in part]
            assert len(set(rows)) == len(rows)
            if len(rows) == size == 11:
                orders.add(tuple(rows))
    assert len(orders) > 4  # epochs differ
    assert tuple(range(11)) not in orders


def test_finite_sources_are_read_once_at_most_and_what_is_left_out_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        source = mixed((10, 8, 30), (1.0, 1.0, 2.0), "stop")
    assert source.counts == [8, 8, 16]
    line = "left out of each epoch of the mixture: 14 of 30 of source 2, 2 of 10 of source 0"
    assert [line in record.getMessage() for record in caplog.records] == [True]
    left = []
    for epoch, part in enumerate(batched(read(source, 4 * 32), 32)):
        assert Counter(s for s, _, _ in part) == {0: 8, 1: 8, 2: 16}
        assert len(set(part)) == 32
        assert {e for _, e, _ in part} == {epoch}
        left.append(frozenset(range(30)) - {row for s, _, row in part if s == 2})
    assert len(set(left)) == 4  # others in every epoch


def test_nothing_is_said_where_nothing_is_left_out(caplog):
    mixed((10, 8), (1.0, 1.0), "repeat")
    mixed((10, 8), (), "stop")
    assert not caplog.records


@pytest.mark.parametrize("end", ["repeat", "stop"])
def test_every_stretch_has_about_the_weights(end):
    weights = np.array([6.0, 3.0, 1.0])
    source = mixed((300, 200, 100), tuple(weights.tolist()), end)
    drawn = np.array([s for s, _, _ in read(source, 2 * len(source))])
    asked = np.arange(1, len(drawn) + 1)[:, None] * (weights / weights.sum())
    realised = np.cumsum(drawn[:, None] == np.arange(3), axis=0)
    assert np.abs(realised - asked).max() <= 3
    assert len(set(map(tuple, drawn[: len(drawn) // 10 * 10].reshape(-1, 10).tolist()))) > 20


def test_the_source_of_a_row_follows_from_seed_and_epoch():
    a, again, other = (mixed((50, 50), (1.0, 2.0), seed=seed) for seed in (0, 0, 1))
    rows = [
        read(source, 3 * len(a), seed=seed) for source, seed in ((a, 0), (again, 0), (other, 1))
    ]
    assert rows[0] == rows[1] != rows[2]
    epochs = batched([s for s, _, _ in rows[0]], len(a))
    assert len(set(epochs)) == 3
    # By random access, backwards, across epochs
    backwards = [a.locate(*divmod(i, len(a))) for i in reversed(range(3 * len(a)))]
    assert [(s, *place) for s, place in reversed(backwards)] == rows[0]


def test_any_start_and_any_number_of_processes():
    source = mixed((7, 5, 2), (3.0, 1.0, 1.0))
    whole = Loader(source, 8, 3)
    batches = [whole.batch(step) for step in range(12)]
    for start in (0, 1, 5, 9):
        loader = Loader(mixed((7, 5, 2), (3.0, 1.0, 1.0)), 8, 3, start_step=start)
        for step in range(start, start + 3):
            np.testing.assert_array_equal(next(loader)["tokens"], batches[step]["tokens"])
        assert loader.state() == {"step": start + 3}
        loader.close()
    for count in (2, 4):
        parts = [Loader(source, 8, 3, 0, process, count) for process in range(count)]
        for step, batch in enumerate(batches):
            joined = np.concatenate([part.batch(step)["tokens"] for part in parts])
            np.testing.assert_array_equal(joined, batch["tokens"])
            assert {tuple(part.batch_ids(step)) for part in parts} == {tuple(whole.batch_ids(step))}
    ids = [i for step in range(12) for i in whole.batch_ids(step)]
    assert len(set(ids)) == len(ids)


def test_a_source_that_gets_no_row_is_refused():
    with pytest.raises(UserError, match=r"give source 1 no row in an epoch of 3, raise its weight"):
        mixed((3, 3), (1.0, 0.01), "stop")


def test_joined_rows_are_one_source_after_another():
    source = JoinedRows([Numbered(0, 3), Numbered(1, 1), Numbered(2, 2)])
    assert source.num_tokens == 18
    batches = list(evaluation_batches(source, 4))
    rows = [tuple(row) for batch in batches for row in batch["tokens"].tolist()]
    assert rows[:6] == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0), (2, 0, 0), (2, 0, 1)]


def config(*paths, **changes) -> RunConfig:
    c = text.get_config()
    c.data.mixture.paths = tuple(map(str, paths))
    c.data.length = 16
    c.data.tokenizer.update(kind="byte", vocab_size=0)
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


@pytest.fixture
def texts(tmp_path):
    """Three files of uneven size, each of one letter: its tokens tell its name."""
    for letter, lines in (("a", 40), ("b", 200), ("c", 15)):
        (tmp_path / f"{letter}.txt").write_text((letter * 9 + "\n") * lines)
    return [tmp_path / f"{letter}.txt" for letter in "abc"]


def letters(data, rows) -> Counter:
    """How many of the rows are of each file: of which letter most of a row's tokens are."""
    found = Counter()
    for row in rows:
        characters = Counter(data.tokenizer.decode([*row["tokens"], *row["targets"]]))
        found[max("abc", key=lambda letter: characters[letter])] += 1
    return found


@pytest.mark.parametrize("pack", [True, False])
def test_texts_are_mixed_by_weight(texts, tmp_path, pack):
    cfg = config(*texts, **{"data.mixture.weights": (2.0, 1.0, 1.0), "data.pack": pack})
    data = open_data(cfg, tmp_path / "run")
    rows = [data.train.row(0, place) for place in range(len(data.train))]
    found, total = letters(data, rows), len(rows)
    assert found == dict(zip("abc", data.train.counts, strict=True))
    assert abs(found["a"] - total / 2) < 1
    assert abs(found["c"] - total / 4) < 1
    assert found["b"] == len(data.train.sources[1])  # the largest is read once
    held_out = [data.validation.row(0, i) for i in range(len(data.validation))]
    lines = [data.tokenizer.decode(row["targets"][row["weights"] > 0]) for row in held_out]
    assert set("".join(lines)) == set("abc\n")  # some of each file
    again = open_data(cfg, tmp_path / "run")
    assert again.train.fingerprint == data.train.fingerprint
    assert describe(data, resolve(cfg, data))["mixture"].startswith(f"{texts[0]} 50.0% (")


def test_a_source_has_the_cache_of_a_run_on_it_alone(texts, tmp_path):
    shared = {"data.cache": str(tmp_path / "cache")}
    open_data(config(*texts, **shared), tmp_path / "run")
    names = {path.name for path in (tmp_path / "cache").iterdir()}
    assert len(names) == 4
    alone = config(**shared, **{"data.mixture.paths": (), "data.path": str(texts[0])})
    open_data(alone, tmp_path / "other")
    assert len({path.name for path in (tmp_path / "cache").iterdir()} - names) == 1  # validation


@pytest.mark.parametrize("changes", [{"data.mixture.weights": (1.0, 2.0)}, {"seed": 1},
                                     {"data.mixture.end": "stop"}])  # fmt: skip
def test_what_a_mixture_depends_on_is_in_its_fingerprint(texts, changes):
    plain, other = (open_data(config(*texts[:2], **more), None) for more in ({}, changes))
    assert plain.train.fingerprint != other.train.fingerprint


def test_own_validation_files_are_shared(texts, tmp_path):
    cfg = config(*texts[:2], **{"data.validation_path": str(texts[2])})
    data = open_data(cfg, tmp_path / "run")
    rows = [data.validation.row(0, i) for i in range(len(data.validation))]
    assert set(letters(data, rows)) == {"c"}
    assert data.validation.num_bytes == 150


@pytest.mark.parametrize("kind", ["prefix_lm", "masked_lm"])
def test_other_objectives_of_text(texts, kind):
    changes = {"objective.kind": kind, "data.mixture.weights": (1.0, 1.0)}
    if kind == "masked_lm":
        changes["model.architecture"] = "encoder"
    data = open_data(config(*texts[:2], **changes), None)
    rows = [data.train.row(0, place) for place in range(len(data.train))]
    found = letters(data, rows)
    assert set(found) == {"a", "b"}
    if kind == "masked_lm":  # the same row of two sources hides other places
        hidden = {source: [] for source in (0, 1)}
        for place, row in enumerate(rows):
            source, (_, index) = data.train.locate(0, place)
            hidden[source].append((index, tuple(row["weights"].tolist())))
        first = {s: dict(reversed(rows_)) for s, rows_ in hidden.items()}
        same = [first[0][i] == first[1][i] for i in first[0].keys() & first[1].keys()]
        assert np.mean(same) < 0.5


def test_pairs_and_labelled_texts_are_mixed(tmp_path):
    for name, count in (("one", 30), ("two", 90)):
        lines = [
            {"source": f"{name} {i}", "target": f"t {i}", "text": f"{name} {i}", "label": name}
            for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    paths = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    weights = {"data.mixture.weights": (1.0, 1.0), "data.source": "jsonl", "data.pack": False}
    pairs = weights | {"objective.kind": "seq2seq", "model.architecture": "encoder_decoder"}
    cfg = config(*paths, **pairs)
    data = open_data(cfg, tmp_path / "pairs")
    assert data.train.counts == [81, 81]
    decode = data.tokenizer.decode
    rows = [data.train.row(0, i) for i in range(len(data.train))]
    assert Counter(decode(row["source"])[:3] for row in rows) == {"one": 81, "two": 81}
    assert len({decode(row["source"]) for row in rows}) == 27 + 81
    held_out = [data.validation.row(0, i) for i in range(len(data.validation))]
    assert Counter(decode(row["source"])[:3] for row in held_out) == {"one": 3, "two": 9}
    assert data.validation.num_bytes > 0
    labels = weights | {"objective.kind": "sequence_classification", "model.head.kind": "sequence"}
    data = open_data(config(*paths, **labels, **{"model.architecture": "encoder"}), None)
    assert data.classes == ("one", "two")
    rows = [data.train.row(0, i) for i in range(len(data.train))]
    assert Counter(int(row["targets"]) for row in rows) == {0: 81, 1: 81}


def test_a_missing_source_is_named(texts, tmp_path):
    with pytest.raises(
        UserError, match=r"none\.txt: does not exist, give data\.mixture\.paths the"
    ):
        open_data(config(texts[0], tmp_path / "none.txt"), None)
    with pytest.raises(
        UserError, match=r"a\.txt: is a file, give data\.mixture\.paths the name of"
    ):
        open_data(config(texts[0], tmp_path, **{"data.source": "folder"}), None)
    held_out = {"data.validation_path": str(tmp_path / "none.txt")}
    with pytest.raises(UserError, match=r"does not exist, give data\.validation_path the name"):
        open_data(config(*texts, **held_out), None)
    stream = {"data.streaming": True, "data.mixture.weights": (1.0, 1.0)}
    with pytest.raises(UserError, match=r"does not exist, give data\.validation_path the name"):
        open_data(config(*texts[:2], **held_out, **stream), None)


def test_a_file_in_two_sources_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("some words of a text, and a few more of it\n" * 20)
    with pytest.raises(UserError, match=r"data\.mixture\.paths: name .*a\.txt twice"):
        open_data(config(tmp_path / "a.txt", tmp_path / "?.txt"), None)


def test_weights_too_far_apart_are_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("some words of a text, and a few more of it\n" * 20)
    weights = {"data.mixture.weights": (1.0, 1e14)}
    with pytest.raises(UserError, match=r"data\.mixture\.weights: make an epoch of "):
        open_data(config(tmp_path / "a.txt", tmp_path / "b.txt", **weights), None)
