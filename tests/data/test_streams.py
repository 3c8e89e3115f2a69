import csv
import gzip
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from configs import text
from jaxformer.config import RunConfig
from jaxformer.data import describe, open_data, resolve
from jaxformer.data.cache import open_cache
from jaxformer.data.document_stream import DocumentStream, Mark
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.data.stream_loader import StreamLoader
from jaxformer.data.streams import Windows
from jaxformer.errors import TrainingFailed, UserError

ROOT = Path(__file__).resolve().parents[2]


def config(path, **changes) -> RunConfig:
    c = text.get_config()
    c.data.update(source="jsonl", path=str(path), length=16, streaming=True)
    c.data.stream.update(window=7, validation_documents=3)
    c.data.tokenizer.update(kind="byte", vocab_size=0)
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


def write_shards(folder, texts, count=3, name="part") -> str:
    """Shards of uneven size; returns a glob."""
    cuts = [*[0, len(texts) // 7, len(texts) // 2][:count], len(texts)]
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        lines = [json.dumps({"text": text}) for text in texts[start:end]]
        (folder / f"{name}{number}.jsonl").write_text("".join(line + "\n" for line in lines))
    return str(folder / f"{name}*.jsonl")


def documents(count: int = 53, seed: int = 0) -> list[str]:
    """Texts of 5 … 60 characters, no two windows of them alike; they begin with their number."""
    rng = np.random.default_rng(seed)
    letters = "".join(map(chr, rng.integers(ord("a"), ord("z") + 1, 60 * count)))
    sizes = rng.integers(1, 56, count).tolist()
    return [f"{i:03d}:" + letters[60 * i : 60 * i + n] for i, n in enumerate(sizes)]


@pytest.fixture
def shards(tmp_path) -> str:
    return write_shards(tmp_path, documents())


def take(loader, count: int) -> list[dict[str, np.ndarray]]:
    batches = list(itertools.islice(loader, count))
    loader.close()
    return batches


def assert_equal(a, b) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name])


def spelled(data, batches) -> list[str]:
    """The documents in their order, from packed rows in a row; the last may be cut off."""
    ids = np.concatenate([batch["tokens"].ravel() for batch in batches])
    parts = np.split(ids, np.flatnonzero(ids == data.tokenizer.bos_id))[1:]
    return [data.tokenizer.decode(part) for part in parts][:-1]


# Documents of a stream, cut ------------------------------------------------------------------


class Listed(DocumentStream):
    """Epochs of listed token ids."""

    def __init__(self, lists):
        object.__setattr__(self, "lists", lists)

    def read(self, mark):
        for epoch in itertools.count(mark.epoch):
            for number, ids in enumerate(self.lists):
                if (epoch, number) >= (mark.epoch, mark.document):
                    yield Mark(epoch, 0, {}, number), np.array(ids, np.int32)


def windows(lists, length, ahead, pack, count, state=None):
    cut = Windows(Listed(lists), length, ahead, pack, state)
    return [(t.tolist(), s.tolist()) for t, s in itertools.islice(cut, count)]


def test_literal_windows():
    lists = [[1, 5, 6, 2], [1, 7, 2]]
    assert windows(lists, 3, 1, True, 4) == [
        ([1, 5, 6, 2], [1, 1, 1, 1]),
        ([2, 1, 7, 2], [1, 2, 2, 2]),
        ([2, 1, 5, 6], [1, 2, 2, 2]),  # on to the next epoch
        ([6, 2, 1, 7], [1, 1, 2, 2]),
    ]
    assert windows(lists, 3, 0, True, 3) == [
        ([1, 5, 6], [1, 1, 1]),
        ([2, 1, 7], [1, 2, 2]),
        ([2, 1, 5], [1, 2, 2]),
    ]
    assert windows(lists, 2, 1, False, 4) == [
        ([1, 5, 6], [1, 1, 1]),
        ([6, 2, 0], [1, 1, 0]),
        ([1, 7, 2], [1, 1, 1]),
        ([1, 5, 6], [1, 1, 1]),
    ]
    assert windows([[1, 2]], 7, 1, True, 1) == [([1, 2] * 4, [1, 1, 2, 2, 3, 3, 4, 4])]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("length", [1, 5, 16])
def test_the_first_epoch_has_the_rows_of_the_cache(pack, ahead, length):
    rng = np.random.default_rng(1)
    lists = [list(range(3, 3 + n)) for n in rng.integers(2, 40, 30)]
    cache = open_cache(None, "test", 99, [(np.array(ids, np.int32), 0) for ids in lists])
    if pack:
        rows = PackedRows(cache, length, 0, False, ahead)
        count = int(cache.offsets[-1]) // length - 1  # the last is padded in a cache
    else:
        rows = DocumentRows(cache, length, ahead)
        count = len(rows)
    expected = [tuple(part.tolist() for part in rows.window(0, i)) for i in range(count)]
    assert windows(lists, length, ahead, pack, count) == expected


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("pack", [True, False])
def test_the_state_of_every_window(pack, ahead):
    lists, length = [[1, 5, 6, 2], [1, 7, 2], list(range(10, 21)), [3, 4]], 4
    reference = windows(lists, length, ahead, pack, 40)
    cut = Windows(Listed(lists), length, ahead, pack, None)
    for number in range(30):
        state = json.loads(json.dumps(cut.state()))
        assert windows(lists, length, ahead, pack, 10, state) == reference[number : number + 10]
        next(cut)


# From files to batches --------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 7, 1000])
def test_each_epoch_has_every_document_once_in_an_order_of_its_own(shards, window):
    data = open_data(config(shards, **{"data.stream.window": window}), None)
    texts = documents()[3:]
    read = spelled(data, take(StreamLoader(data.train, 8), 75))
    assert len(read) > 5 * len(texts)
    epochs = [read[i : i + len(texts)] for i in range(0, 5 * len(texts), len(texts))]
    for epoch in epochs:
        assert Counter(epoch) == Counter(texts)
        for start in range(0, len(texts), window or 1):  # no document leaves its window
            part = slice(start, start + (window or 1))
            assert Counter(epoch[part]) == Counter(texts[part])
        if window == 7:  # and not all windows of an epoch are shuffled alike
            parts = [range(start, start + 7) for start in range(0, len(texts) - 7, 7)]
            orders = {tuple(texts.index(epoch[i]) - part[0] for i in part) for part in parts}
            assert len(orders) > 1
    assert len(set(map(tuple, epochs))) == (5 if window else 1)
    assert (epochs[0] == texts) == (not window)


def test_validation_is_the_first_documents_and_never_trained_on(shards):
    data = open_data(config(shards), None)
    rows = [data.validation.row(0, i) for i in range(len(data.validation))]
    held_out = np.concatenate([row["targets"][row["weights"] > 0] for row in rows])
    assert data.tokenizer.decode(held_out) == "".join(documents()[:3])
    assert data.validation.num_bytes == sum(map(len, documents()[:3]))


MIXED = {"data.mixture.weights": (2.0, 1.0), "data.path": ""}
KINDS = {
    "packed": {},
    "documents": {"data.pack": False},
    "in order": {"data.stream.window": 0},
    "prefix": {"objective.kind": "prefix_lm"},
    "masked": {"objective.kind": "masked_lm", "model.architecture": "encoder"},
    "mixture": MIXED,
    "long rows": {"data.length": 128},  # longer than a window of documents
}
STEPS = 64


def open_kind(tmp_path, kind):
    """The data of a kind of stream over the shards in a folder."""
    changes = dict(KINDS[kind])
    if kind == "mixture":
        changes["data.mixture.paths"] = (
            str(tmp_path / "part*.jsonl"),
            write_shards(tmp_path, documents(17, 5), 2, "other"),
        )
    if kind == "long rows":
        changes |= {"data.stream.window": 2}
    return open_data(config(tmp_path / "part*.jsonl", **changes), None)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_20_points_nothing_is_lost_or_repeated(tmp_path, shards, kind):
    """As a run would: the state goes through JSON, the data are opened anew."""
    data = open_kind(tmp_path, kind)
    whole, states, reference = StreamLoader(data.train, 4), [], []
    for _ in range(STEPS):
        states.append(json.dumps(whole.state()))
        reference.append(next(whole))
    whole.close()
    cuts = sorted({0, 1, 2, *np.random.default_rng(0).permutation(np.arange(3, 58))[:17].tolist()})
    assert len(cuts) == 20
    for cut in cuts:
        assert len(states[cut]) < 600 * len(data.train.sources)
        opened = open_kind(tmp_path, kind) if cut in cuts[::5] else data
        loader = StreamLoader(opened.train, 4, json.loads(states[cut]))
        assert loader.step == cut
        for step in range(cut, min(cut + 12, STEPS)):
            assert_equal(next(loader), reference[step])
        if step + 1 < STEPS:
            assert json.dumps(loader.state()) == states[step + 1]
        loader.close()
    # Cut at all of them, one after another: the whole run, in order
    joined, state = [], None
    for start, end in itertools.pairwise([*cuts, STEPS]):
        loader = StreamLoader(data.train, 4, state)
        joined += [next(loader) for _ in range(end - start)]
        state = json.loads(json.dumps(loader.state()))
        loader.close()
    for batch, expected in zip(joined, reference, strict=True):
        assert_equal(batch, expected)


RESUMES = """
import json, sys
import numpy as np
from tests.data.test_streams import config, open_data, take, StreamLoader

data = open_data(config(sys.argv[1]), None)
batches = take(StreamLoader(data.train, 4, json.loads(sys.argv[2])), 20)
print(json.dumps([batch["tokens"].tolist() for batch in batches]))
"""


def test_another_process_goes_on_alike(shards):
    data = open_data(config(shards), None)
    loader = StreamLoader(data.train, 4)
    for _ in range(23):
        next(loader)
    state = json.dumps(loader.state())
    reference = [batch["tokens"].tolist() for batch in take(loader, 20)]
    ran = subprocess.run(
        [sys.executable, "-c", RESUMES, shards, state],
        cwd=ROOT, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == reference


@pytest.mark.parametrize("kind", ["packed", "mixture", "masked"])
@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_the_same_global_batch(tmp_path, shards, kind, count):
    data = open_kind(tmp_path, kind)
    whole = StreamLoader(data.train, 8)
    parts = [StreamLoader(data.train, 8, None, process, count) for process in range(count)]
    for step in range(12):
        batch, shares = next(whole), [next(part) for part in parts]
        assert_equal({n: np.concatenate([s[n] for s in shares]) for n in batch}, batch)
        ids = [tuple(loader.batch_ids(step)) for loader in (whole, *parts)]
        assert len(set(ids)) == 1
        assert len(set(ids[0])) == 8
        states = {json.dumps(loader.state()) for loader in (whole, *parts)}
        assert len(states) == 1  # a run may go on with another number of processes
    for loader in (whole, *parts):
        loader.close()


def test_a_batch_that_processes_cannot_share_is_refused(shards):
    data = open_data(config(shards), None)
    with pytest.raises(UserError, match=r"train\.batch_size: 6 rows .* by 4 processes"):
        StreamLoader(data.train, 6, None, 0, 4)


def test_seeds_differ(shards):
    data = [open_data(config(shards, seed=seed), None) for seed in (0, 1)]
    a, b = (take(StreamLoader(d.train, 8), 3) for d in data)
    assert any((x["tokens"] != y["tokens"]).any() for x, y in zip(a, b, strict=True))
    assert data[0].train.fingerprint != data[1].train.fingerprint


def test_the_weights_of_a_mixture_are_realised(tmp_path, shards):
    """Draws are independent: 5 standard deviations of a binomial, and no period."""
    stream = open_kind(tmp_path, "mixture").train
    drawn = np.array([stream.source_of(row) for row in range(20_000)])
    assert abs((drawn == 0).mean() - 2 / 3) < 5 * np.sqrt(2 / 9 / len(drawn))
    pairs = drawn[:-1] * 2 + drawn[1:]
    assert np.abs(np.bincount(pairs) / len(pairs) - [4 / 9, 2 / 9, 2 / 9, 1 / 9]).max() < 0.02
    rows = list(itertools.islice(stream.rows(), 200))
    alone = [Windows(source, 16, 1, True, None) for source in stream.sources]
    for (window, number), source in zip(rows, drawn[:200].tolist(), strict=True):
        del number
        np.testing.assert_array_equal(window, next(alone[source]))  # each as it is alone


def write_as(folder, kind, texts) -> dict[str, str]:
    """The texts in two files of a kind; returns the config that reads them."""
    folder.mkdir()
    for number, part in enumerate((texts[:20], texts[20:])):
        file = folder / f"{number}.{kind}"
        if kind in ("csv", "tsv"):
            with open(file, "w", newline="", encoding="utf-8") as opened:
                rows = csv.writer(opened, delimiter="\t" if kind == "tsv" else ",")
                rows.writerows([["id", "body"], *(["7", text] for text in part)])
        elif kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.table({"body": part}), file)
        elif kind == "jsonl.gz":
            lines = "".join(json.dumps({"body": text}) + "\n" for text in part)
            file.write_bytes(gzip.compress(lines.encode()))
        else:
            file.write_text("".join(json.dumps({"body": text}) + "\n" for text in part))
    source = kind.removesuffix(".gz")
    return {"data.source": source, "data.path": f"{folder}/*", "data.text_field": "body"}


@pytest.mark.parametrize("kind", ["jsonl.gz", "csv", "tsv", "parquet"])
def test_files_of_every_kind_hold_the_same_documents(tmp_path, kind):
    texts = documents()
    texts[30:30] = ["", " \n " if kind != "tsv" else "  "]  # documents without text are left out
    where = write_as(tmp_path / "files", kind, texts)
    data = open_data(config("", **where), None)
    found = spelled(data, take(StreamLoader(data.train, 8), 18))[: len(documents()) - 3]
    assert Counter(found) == Counter(documents()[3:])


@pytest.mark.parametrize("source", ["text", "folder"])
def test_a_text_file_is_a_document(tmp_path, source):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.txt").write_text(f"text {i}\nof two lines")
    path = folder / "*.txt" if source == "text" else folder
    changes = {
        "data.source": source,
        "data.stream.window": 0,
        "data.stream.validation_documents": 2,
    }
    data = open_data(config(path, **changes), None)
    found = spelled(data, take(StreamLoader(data.train, 8), 3))
    assert found[:5] == [f"text {i}\nof two lines" for i in (2, 3, 4, 5, 2)]


def test_own_validation_files(tmp_path, shards):
    (tmp_path / "held.jsonl").write_text('{"text": "held out"}\n' * 4)
    own = {
        "data.stream.validation_documents": 0,
        "data.validation_path": str(tmp_path / "held.jsonl"),
    }
    data = open_data(config(shards, **own), tmp_path / "run")
    assert data.validation.num_bytes == 32
    assert Counter(spelled(data, take(StreamLoader(data.train, 8), 18))[:53]) == Counter(
        documents()
    )
    again = open_data(config(shards, **own), tmp_path / "run")
    assert again.train.fingerprint == data.train.fingerprint
    assert again.validation.fingerprint == data.validation.fingerprint


def test_other_files_have_another_fingerprint(tmp_path, shards):
    before = open_data(config(shards), None).train.fingerprint
    file = next(tmp_path.glob("*.jsonl"))
    content = file.read_text()
    file.write_text(content.replace("e", "f", 1))
    assert open_data(config(shards), None).train.fingerprint != before
    file.write_text(content)
    assert open_data(config(shards), None).train.fingerprint == before


def test_what_dry_run_says(tmp_path, shards):
    cfg = config(shards, **{"train.num_steps": 700})
    data = open_data(cfg, None)
    facts = describe(data, resolve(cfg, data))
    assert facts["training documents"].startswith("streamed, shuffled 7 documents at a time")
    assert "training tokens" not in facts
    assert facts["validation rows"] == str(len(data.validation))
    mixed = open_kind(tmp_path, "mixture")
    cfg = config("", **MIXED, **{"data.mixture.paths": ("a", "b")})
    assert describe(mixed, cfg)["mixture"].startswith("a 66.7% (of the first 1,000 rows 6")
    assert resolve(config(shards), data).train.num_steps == 1000


# What is refused ------------------------------------------------------------------------------


def test_a_damaged_line_is_named_when_it_is_reached(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents(20)) + "{\n")
    loader = StreamLoader(open_data(config(path), None).train, 4)
    with pytest.raises(UserError, match=r"a\.jsonl line 21: is not JSON"):
        take(loader, 100)
    loader.close()


@pytest.mark.parametrize("content", ["", "\n\n", '{"text": ""}\n', '{"text": "only one"}\n' * 3])
def test_a_stream_without_documents_ends_at_once(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_text(content or " ")
    with pytest.raises(UserError, match=r"a\.jsonl: (holds no document|has 0 tokens)"):
        open_data(config(path), None)


def test_documents_too_short_for_a_row_never_hang(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ab"}\n' * 3 + '{"text": "a"}\n' * 3)
    bare = {"data.pack": False, "data.add_bos": False, "data.add_eos": False}
    with pytest.raises(UserError, match="holds no document of 2 tokens or more to train on"):
        open_data(config(path, **bare), None)


def test_a_stream_that_breaks_is_not_bad_input(shards):
    data = open_data(config(shards), None)
    (source,) = data.train.sources

    def broken():
        yield {"text": "good"}
        raise ConnectionError("reset by peer")

    from datasets import IterableDataset

    stream = DocumentStream(
        source.cfg, lambda: IterableDataset.from_generator(broken), "x", source.tokenizer, 0, 1
    )
    with pytest.raises(TrainingFailed, match=r"the stream broke \(reset by peer\)"):
        list(stream.read(Mark()))


REFUSED = [
    ({"data.stream.validation_documents": 0}, "data.validation_path", "neither is set"),
    ({"data.validation_path": "v.jsonl"}, "data.validation_path", "both are set"),
    ({"data.validation_fraction": 0.2}, "data.validation_fraction", "whose end is not known"),
    ({"train.num_epochs": 2.0}, "train.num_epochs", "give train.num_steps"),
    ({"data.tokenizer.kind": "word"}, "data.tokenizer.kind", "choose from byte, file"),
    ({"data.tokenizer.kind": "char"}, "data.tokenizer.kind", "made from all the text"),
    ({"data.stream.window": -1}, "data.stream.window", "0 or more"),
    ({"data.mixture.paths": ("a", "b"), "data.path": ""}, "data.mixture.weights", "is empty"),
    (
        MIXED | {"data.mixture.paths": ("a", "b"), "data.mixture.end": "stop"},
        "data.mixture.end",
        "start again",
    ),
    (
        {"objective.kind": "seq2seq", "model.architecture": "encoder_decoder"},
        "data.streaming",
        "only documents are streamed",
    ),
]


@pytest.mark.parametrize(("changes", "where", "words"), REFUSED, ids=str)
def test_what_a_stream_cannot_do_is_refused(changes, where, words):
    with pytest.raises(UserError) as caught:
        config("a.jsonl", **changes)
    assert caught.value.where == where
    assert words in f"{caught.value.what}, {caught.value.mend}"


def test_a_task_is_no_stream():
    from configs import base

    c = base.get_config()
    c.data.update(streaming=True)
    c.data.stream.validation_documents = 3
    with pytest.raises(UserError, match=r"data\.streaming: is set to True but never read"):
        RunConfig.from_config_dict(c)


# The hub -----------------------------------------------------------------------------------------


def hub(monkeypatch, load):
    """Puts local files in the place of the hub."""
    import datasets
    from huggingface_hub import utils

    def no_network():
        raise OSError("no network")

    monkeypatch.setattr(utils, "get_session", no_network)
    monkeypatch.setattr(datasets, "load_dataset", load)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_hub_stream_goes_on_exactly(tmp_path, shards, monkeypatch, kind):
    import datasets

    load, texts = datasets.load_dataset, documents()
    if kind == "parquet":
        for number, part in enumerate((texts[:9], texts[9:40], texts[40:])):
            table = pyarrow.table({"body": part, "id": list(range(len(part)))})
            pyarrow.parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    files = sorted(str(p) for p in tmp_path.glob("*.jsonl" if kind == "json" else "*.parquet"))

    def local(name, subset, *, split, streaming):
        assert (name, subset, split, streaming) == ("owner/name", "sub", "train", True)
        return load(kind, data_files=files, split="train", streaming=True)

    hub(monkeypatch, local)
    field = "text" if kind == "json" else "body"
    cfg = config("owner/name:sub", **{"data.source": "hub", "data.text_field": field})
    data = open_data(cfg, None)
    whole, states, reference = StreamLoader(data.train, 4), [], []
    for _ in range(60):
        states.append(json.dumps(whole.state()))
        reference.append(next(whole))
    whole.close()
    assert Counter(spelled(data, reference)[:50]) == Counter(texts[3:])
    for cut in range(1, 60, 6):
        loader = StreamLoader(open_data(cfg, None).train, 4, json.loads(states[cut]))
        for step in range(cut, min(cut + 8, 60)):
            assert_equal(next(loader), reference[step])
        loader.close()


def test_a_hub_stream_that_is_not_there(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("no such data set")

    hub(monkeypatch, missing)
    with pytest.raises(UserError, match=r"cannot be had from the hub \(no such data set\)"):
        open_data(config("owner/name", **{"data.source": "hub"}), None)


def test_what_is_wrong_with_any_source_is_refused_at_the_start(tmp_path, shards):
    (tmp_path / "other.json").write_text('{"words": "no text"}\n')
    paths = {"data.path": "", "data.mixture.paths": (shards, str(tmp_path / "other.json"))}
    write_shards(tmp_path, documents(), 1, "held_out")
    held_out = {"data.validation_path": str(tmp_path / "held_out*")}
    held_out |= {"data.stream.validation_documents": 0, "data.mixture.weights": (1000.0, 1.0)}
    with pytest.raises(UserError, match=r"other\.json line 1: has no column"):
        open_data(config("", **paths, **held_out), None)
