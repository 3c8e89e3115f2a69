"""Pairs and labelled texts from files, end to end, and what is refused."""

import gzip
import json

import numpy as np
import pytest

from configs import banking77, multi30k, thucnews
from jaxformer.config import RunConfig
from jaxformer.data import describe, examples, open_data, open_file
from jaxformer.errors import UserError

ENGLISH = [f"a line of number {i}" for i in range(40)]
GERMAN = [f"eine Zeile mit Nummer {i}" for i in range(40)]


def run_config(made, **changes) -> RunConfig:
    made.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(made)


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


@pytest.fixture
def texts(tmp_path):
    """The two files of a parallel text, and the config's fields that name them."""
    return {
        "data.path": write(tmp_path / "a.en.gz", ENGLISH),
        "data.target_path": write(tmp_path / "a.de", GERMAN),
        "data.tokenizer.vocab_size": 300,
    }


def decoded(data, source, part="tokens", segments="segment_ids"):
    """The texts of all segments of all rows of a source."""
    found = []
    for index in range(len(source)):
        row = source.row(0, index)
        for segment in range(1, row[segments].max() + 1):
            found.append(data.tokenizer.decode(row[part][row[segments] == segment]))
    return found


def both(data, source):
    sides = ("source", "source_segment_ids"), ("tokens", "segment_ids")
    return list(zip(*(decoded(data, source, *side) for side in sides), strict=True))


@pytest.mark.parametrize("pack", [True, False])
def test_parallel_text(texts, tmp_path, pack):
    cfg = run_config(multi30k.get_config(), **texts, **{"data.pack": pack})
    data = open_data(cfg, tmp_path / "run")
    found = [both(data, split) for split in (data.train, data.validation)]
    assert sorted(found[0] + found[1]) == sorted(zip(ENGLISH, GERMAN, strict=True))
    assert len(found[1]) == 4
    assert sorted(found[1]) != sorted(zip(ENGLISH[-4:], GERMAN[-4:], strict=True))  # drawn
    assert data.validation.num_bytes == sum(len(german) for _, german in found[1])
    row = data.validation.row(0, 0)
    first = row["source_segment_ids"] == 1
    assert row["source"][first][0] > 2 and row["source"][first][-1] == 2  # text </s>
    assert "sample source" in describe(data, cfg)


def test_merges_come_from_both_sides(texts):
    data = open_data(run_config(multi30k.get_config(), **texts), None)
    tokens = {data.tokenizer.token(i) for i in range(data.tokenizer.vocab_size)}
    assert {"Ġnumber", "ĠNummer"} <= tokens


def test_the_split_is_drawn_by_its_seed_alone(texts):
    splits = {}
    for name, changes in {
        "plain": {},
        "other run": {"seed": 1},
        "other split": {"data.split_seed": 1},
    }.items():
        data = open_data(run_config(multi30k.get_config(), **texts, **changes), None)
        splits[name] = both(data, data.validation)
    assert splits["plain"] == splits["other run"] != splits["other split"]


def test_validation_files_of_their_own(texts, tmp_path):
    own = {
        "data.validation_path": write(tmp_path / "v.en", ["a line"]),
        "data.validation_target_path": write(tmp_path / "v.de.gz", ["eine Zeile"]),
    }
    cfg = run_config(multi30k.get_config(), **texts, **own)
    data = open_data(cfg, tmp_path / "run")
    assert both(data, data.validation) == [("a line", "eine Zeile")]
    assert len(both(data, data.train)) == 40
    test = open_file(cfg, data.tokenizer, (), *own.values())
    assert both(data, test) == [("a line", "eine Zeile")]


def begin(workdir):
    """What training does next: from then on the run is bound to its tokenizer and classes."""
    (workdir / "config.json").touch()


def test_second_start_reads_no_text(texts, tmp_path, monkeypatch):
    cfg = run_config(multi30k.get_config(), **texts)
    first = open_data(cfg, tmp_path / "run")
    begin(tmp_path / "run")
    for name in ("_reader", "make_tokenizer"):
        monkeypatch.setattr(examples, name, None)
    second = open_data(cfg, tmp_path / "run")
    assert first.train.fingerprint == second.train.fingerprint
    assert both(first, first.train) == both(second, second.train)


def test_columns_of_every_format_agree(texts, tmp_path):
    import datasets

    rows = {"n": list(range(40)), "en": ENGLISH, "de": GERMAN}
    dataset = datasets.Dataset.from_dict(rows)
    dataset.to_parquet(tmp_path / "a.parquet")
    dataset.to_csv(tmp_path / "a.csv")
    lines = [json.dumps({"en": e, "de": d}) for e, d in zip(ENGLISH, GERMAN, strict=True)]
    write(tmp_path / "a.jsonl", lines)
    write(tmp_path / "a.tsv", [f"{e}\t{d}" for e, d in zip(ENGLISH, GERMAN, strict=True)])
    expected = open_data(run_config(multi30k.get_config(), **texts), None)
    for source in ("parquet", "csv", "jsonl", "tsv"):
        changes = {
            "data.source": source,
            "data.path": str(tmp_path / f"a.{source}"),
            "data.source_field": "en",
            "data.target_field": "de",
            "data.tokenizer.vocab_size": 300,
            "data.columns": "en,de" if source == "tsv" else "",
        }
        data = open_data(run_config(multi30k.get_config(), **changes), None)
        assert both(data, data.validation) == both(expected, expected.validation), source


def test_sentences_end_with_line_breaks_only(texts, tmp_path):
    odd = ["one\u2028line", "two\x0blines", "three\u0085"]  # splitlines() would make more of them
    paths = {
        "data.path": write(tmp_path / "odd.en", odd),
        "data.target_path": write(tmp_path / "odd.de", ["1", "2", "3"]),
    }
    data = open_data(run_config(multi30k.get_config(), **(texts | paths)), None)
    pairs = both(data, data.train) + both(data, data.validation)
    assert sorted(pairs) == sorted(zip(odd, "123", strict=True))


def test_pairs_with_an_empty_side_are_left_out(texts, tmp_path):
    paths = {
        "data.path": write(tmp_path / "gaps.en", ["a", "", "c", "d"]),
        "data.target_path": write(tmp_path / "gaps.de", ["x", "y", " ", "z"]),
    }
    data = open_data(run_config(multi30k.get_config(), **(texts | paths)), None)
    pairs = both(data, data.train) + both(data, data.validation)
    assert sorted(pairs) == [("a", "x"), ("d", "z")]


@pytest.mark.parametrize(
    ("source", "target", "match"),
    [
        (["a", "b"], ["x"], r"b\.de: has 1 lines, .*b\.en has 2, line n must translate line n"),
        (["", " "], ["x", "y"], r"b\.en: holds no examples"),
        (["a"], ["x"], r"b\.en: holds a single example"),
    ],
)
def test_texts_that_are_no_pairs(texts, tmp_path, source, target, match):
    paths = {
        "data.path": write(tmp_path / "b.en", source),
        "data.target_path": write(tmp_path / "b.de", target),
    }
    with pytest.raises(UserError, match=match):
        open_data(run_config(multi30k.get_config(), **(texts | paths)), tmp_path / "run")


def test_a_target_file_that_is_missing(texts, tmp_path):
    absent = texts | {"data.target_path": str(tmp_path / "absent.de")}
    with pytest.raises(UserError, match=r"absent\.de: does not exist, give data\.target_path"):
        open_data(run_config(multi30k.get_config(), **absent), None)
    held_out = {"data.validation_path": texts["data.path"]}
    held_out["data.validation_target_path"] = absent["data.target_path"]
    with pytest.raises(UserError, match=r"does not exist, give data\.validation_target_path"):
        open_data(run_config(multi30k.get_config(), **texts, **held_out), None)


def test_a_damaged_gzip_file(texts, tmp_path):
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"text\n" * 99)[:-9])
    cfg = run_config(multi30k.get_config(), **(texts | {"data.path": str(tmp_path / "b.gz")}))
    with pytest.raises(UserError, match=r"b\.gz: cannot be read"):
        open_data(cfg, None)


REVIEWS = [("good, film", "yes"), ("bad", "no"), ('so "so"\nfilm', "maybe"), ("fine", "yes")] * 5


@pytest.fixture
def table(tmp_path):
    import datasets

    rows = {"text": [text for text, _ in REVIEWS], "category": [name for _, name in REVIEWS]}
    datasets.Dataset.from_dict(rows).to_csv(tmp_path / "a.csv", index=False)
    return {"data.path": str(tmp_path / "a.csv"), "data.tokenizer.vocab_size": 260}


def labelled(data, source):
    rows = [source.row(0, i) for i in range(len(source))]
    decode = data.tokenizer.decode
    return [(decode(row["tokens"]), data.classes[int(row["targets"])]) for row in rows]


def test_classes_of_texts(table, tmp_path):
    cfg = run_config(banking77.get_config(), **table)
    data = open_data(cfg, tmp_path / "run")
    assert data.classes == ("maybe", "no", "yes")
    found = labelled(data, data.train) + labelled(data, data.validation)
    assert sorted(found) == sorted(REVIEWS)
    assert len(data.validation) == 2
    resolved = cfg.resolve(vocab_size=260, steps_per_epoch=100, num_classes=len(data.classes))
    assert resolved.model.head.num_classes == 3
    facts = describe(data, cfg)
    assert facts["classes"] == "3: maybe, no, yes"
    assert facts["its class"] in data.classes
    assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list(data.classes)
    assert open_data(cfg, tmp_path / "run").train.fingerprint == data.train.fingerprint
    test = open_file(cfg, data.tokenizer, data.classes, table["data.path"])
    assert labelled(data, test) == REVIEWS


def test_classes_stay_those_of_the_run(table, tmp_path):
    own = {"data.validation_path": str(tmp_path / "v.csv")}
    write(tmp_path / "v.csv", ["text,category", "bad,no"])
    cfg = run_config(banking77.get_config(), **table, **own)
    first = open_data(cfg, tmp_path / "run")
    write(tmp_path / "a.csv", ["text,category", "bad,no", "good,yes"])  # a class fewer
    assert len(open_data(cfg, tmp_path / "refused").classes) < len(first.classes)
    begin(tmp_path / "run")
    assert open_data(cfg, tmp_path / "run").classes == first.classes
    write(tmp_path / "v.csv", ["text,category", "bad,never"])
    with pytest.raises(UserError, match=r"v\.csv: has the class 'never', none of the 3"):
        open_data(cfg, tmp_path / "run")


def test_tab_separated_titles_with_numbers_as_classes(tmp_path):
    lines = [f'标题"{i % 7}\t{i % 11}' for i in range(66)]
    cfg = run_config(thucnews.get_config(), **{"data.path": write(tmp_path / "a.txt", lines)})
    data = open_data(cfg, None)
    assert data.classes == tuple(map(str, range(11)))  # by value: 2 before 10
    found = labelled(data, data.train) + labelled(data, data.validation)
    assert sorted(found) == sorted(tuple(line.split("\t")) for line in lines)
    assert len(data.validation) == 13


TAGGED = {
    "objective.kind": "token_classification",
    "model.head.kind": "token",
    "model.head.pooling": "first",
    "data.source": "jsonl",
    "data.label_field": "tags",
}


@pytest.mark.parametrize(("kind", "size"), [("bpe", 260), ("char", 0), ("word", 0)])
def test_classes_of_words(tmp_path, kind, size):
    lines = [
        {"text": "the boy runs", "tags": "D N V"},
        {"text": ["boys", "see", "the", "boy"], "tags": ["N", "V", "D", "N"]},
        {"text": "he sees her", "tags": "P V P"},
    ]
    path = write(tmp_path / "a.jsonl", map(json.dumps, lines))
    tokenizer = {"data.tokenizer.kind": kind, "data.tokenizer.vocab_size": size}
    changes = TAGGED | tokenizer | {"data.path": path, "data.validation_path": path}
    data = open_data(run_config(banking77.get_config(), **changes), None)
    assert data.classes == ("D", "N", "P", "V")
    row = data.train.row(0, 1)
    places = np.flatnonzero(row["weights"])
    assert [data.classes[i] for i in row["targets"][places]] == ["N", "V", "D", "N"]
    parts = np.split(row["tokens"], places + 1)[:4]
    words = [data.tokenizer.decode(part).strip() for part in parts]
    assert words == ["boys", "see", "the", "boy"]
    assert data.train.num_tokens == 10


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["text,category", "a,x,y"], r"a\.csv line 2: has 3 columns, not the 2 of text, category"),
        (["text,category", '"a,x'], r"a\.csv: is not CSV"),
        (["text,n", "a,x"], r"no column 'category', set data\.label_field to one of: text, n"),
        (["text,category", "a,x", "b,x"], r"a\.csv: has 1 class in column 'category'"),
        (["text,category", ",x"], r"a\.csv: holds no examples"),
    ],
)
def test_bad_tables(tmp_path, lines, match):
    path = {"data.path": write(tmp_path / "a.csv", lines)}
    with pytest.raises(UserError, match=match):
        open_data(run_config(banking77.get_config(), **path), tmp_path / "run")
    kept = ("tokenizer.json", "classes.json")
    assert not any((tmp_path / "run" / name).exists() for name in kept)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ({"text": "a b", "tags": "N"}, "has 1 classes for the 2 words of 'a b'"),
        ({"text": "a", "tags": 5.5}, "has no string in 'tags'"),
        ({"text": ["a b"], "tags": "N"}, "has no string in 'text'"),
    ],
)
def test_bad_tags(tmp_path, line, match):
    good = {"text": "a b", "tags": "N M"}
    path = write(tmp_path / "a.jsonl", map(json.dumps, [good, line]))
    changes = TAGGED | {"data.path": path, "data.validation_path": path}
    with pytest.raises(UserError, match=match):
        open_data(run_config(banking77.get_config(), **changes), None)


def test_multi30k(shared_data):
    folder = shared_data("multi30k")
    paths = {
        "data.path": folder / "train.en.gz",
        "data.target_path": folder / "train.de.gz",
        "data.validation_path": folder / "val.en.gz",
        "data.validation_target_path": folder / "val.de.gz",
        "data.tokenizer.kind": "byte",  # merges take ten seconds
        "data.tokenizer.vocab_size": 0,
    }
    changes = {name: str(path) if path else path for name, path in paths.items()}
    data = open_data(run_config(multi30k.get_config(), **changes, **{"data.pack": False}), None)
    assert (len(data.train), len(data.validation)) == (29_000, 1_014)


def test_banking77_and_thucnews(shared_data):
    path = {"data.path": str(shared_data("banking77") / "train.csv")}
    data = open_data(run_config(banking77.get_config(), **path), None)
    assert (len(data.classes), len(data.train), len(data.validation)) == (77, 9_003, 1_000)
    path = {"data.path": str(shared_data("thucnews") / "dev.txt")}
    data = open_data(run_config(thucnews.get_config(), **path), None)
    assert (len(data.classes), len(data.train), len(data.validation)) == (10, 8_000, 2_000)
