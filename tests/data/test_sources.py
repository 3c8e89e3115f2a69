import gzip
import json
import tempfile
from pathlib import Path

import datasets
import pytest

from configs import text as config
from jaxformer.config import DataConfig
from jaxformer.data.sources import find_files, read_texts, texts_of
from jaxformer.errors import UserError


def data_config(source: str, path, **changes) -> DataConfig:
    c = config.get_config()
    c.data.update({"source": source, "path": str(path), **changes})
    return DataConfig.from_config_dict(c.data)


def read(source: str, path, **changes) -> tuple[list[str], list[str]]:
    cfg = data_config(source, path, **changes)
    with tempfile.TemporaryDirectory() as cache:
        texts = read_texts(cfg, find_files(cfg), cache)
        return list(texts_of(texts.train)), list(texts_of(texts.validation))


def refuse(source: str, path, match: str, **changes) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read(source, path, **changes)
    assert "\n" not in str(caught.value)


def test_single_text_is_split_at_a_line_break(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\nthree\nfour\nfive\n\n")
    train, validation = read("text", path, validation_fraction=0.3)
    assert train == ["one\r\ntwo\nthree\n"]
    assert validation == ["four\nfive\n\n"]


def test_single_text_without_line_breaks_is_split_by_characters(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\ufeff" + "x" * 80 + "字" * 20, encoding="utf-8")  # a byte order mark goes
    assert read("text", path, validation_fraction=0.2) == (["x" * 80], ["字" * 20])


def test_far_line_break_does_not_shift_the_split(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("head\n" + "x" * 200_000)
    _, (validation,) = read("text", path, validation_fraction=0.1)
    assert len(validation) == pytest.approx(20_000, abs=1)


def test_far_line_break_does_not_shift_the_split_of_a_short_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x" * 499 + "\n" + "y" * 1000)
    assert read("text", path, validation_fraction=0.1)[1] == ["y" * 150]


@pytest.mark.parametrize(
    ("count", "fraction", "held_out"), [(10, 0.1, 1), (2, 0.9, 1), (9, 0.5, 4)]
)
def test_last_documents_are_held_out(tmp_path, count, fraction, held_out):
    path = tmp_path / "a.jsonl"
    texts = [f"text {i}" for i in range(count)]
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    train, validation = read("jsonl", path, validation_fraction=fraction)
    assert (train, validation) == (texts[:-held_out], texts[-held_out:])


def test_formats_agree(tmp_path):
    texts = ['a, "b"\nc', "007", "NA", "naïve 字", "last"]
    rows = {"n": list(range(5)), "body": texts}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "a.parquet")
    datasets.Dataset.from_dict(rows).to_csv(tmp_path / "a.csv")
    lines = [json.dumps({"body": t, "n": i}) for i, t in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines))
    for source in ("parquet", "csv", "jsonl"):
        train, validation = read(source, tmp_path / f"a.{source}", text_field="body")
        assert train + validation == texts, source


def test_empty_rows_are_left_out(tmp_path):
    datasets.Dataset.from_dict({"text": ["a", None, " \n", "", "b"]}).to_parquet(tmp_path / "p")
    assert read("parquet", tmp_path / "p") == (["a"], ["b"])
    (tmp_path / "c.csv").write_text('text,n\na,1\n"",2\nb,3\n')
    assert read("csv", tmp_path / "c.csv") == (["a"], ["b"])


def test_glob_is_sorted(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    train, validation = read("text", tmp_path / "*.txt")
    assert train + validation == ["text a", "text b", "text c"]


def test_folder(tmp_path):
    wanted = ["a.py", "pkg/__init__.py", "pkg/b.py", "z.py"]
    left_out = [".git/x.py", ".venv/x.py", "__pycache__/x.py", "notes.md", ".hidden.py"]
    left_out += ["my_env/pyvenv.cfg", "my_env/lib/x.py", "pkg/node_modules/x.py"]
    for name in wanted + left_out:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "pkg/empty.py").write_text("")
    train, validation = read("folder", tmp_path, pattern="*.py")
    assert train + validation == [f"# {name}\n" for name in wanted]
    train, validation = read("folder", tmp_path, pattern="pkg/*")
    assert train + validation == [f"# {name}\n" for name in wanted[1:3]]
    train, validation = read("folder", tmp_path)
    assert train + validation == [f"# {n}\n" for n in ("a.py", "notes.md", *wanted[1:])]


def test_folder_leaves_out_the_run_itself(tmp_path):
    for name in ("a.txt", "runs/1/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    cfg = data_config("folder", tmp_path)
    assert [p.name for p in find_files(cfg, tmp_path / "runs" / "1")] == ["a.txt"]


def test_nothing_is_written_next_to_the_data(tmp_path):
    before = Path.cwd()
    for source, name in (("text", "a.txt"), ("jsonl", "a.jsonl"), ("csv", "a.csv")):
        path = tmp_path / source / name
        path.parent.mkdir()
        path.write_text('{"text": "a"}\n' if source == "jsonl" else "text\na\nb\n")
        path.parent.chmod(0o555)
        read(source, path)
        assert [p.name for p in path.parent.iterdir()] == [name]
    assert Path.cwd() == before


def test_bad_paths(tmp_path):
    refuse("text", tmp_path / "absent.txt", "absent.txt: does not exist")
    refuse("text", tmp_path / "*.txt", "does not exist")
    refuse("text", tmp_path, "is a folder, name a file, or set data.source = folder")
    refuse("folder", tmp_path / "absent", "absent: does not exist")
    refuse("folder", tmp_path, r"has no file with text that matches '\*'")
    (tmp_path / "a.txt").write_text("text")
    refuse("folder", tmp_path / "a.txt", "a.txt: is a file, give data.path the name of a folder")
    refuse("folder", tmp_path, r"matches '\*\.py'", pattern="*.py")


def test_bad_content(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    refuse("text", path, r"a\.txt: is empty")
    path.write_text(" \n\n")
    refuse("text", path, "holds no text")
    path.write_bytes(b"text\0text")
    refuse("text", path, r"a\.txt: is binary \(a zero byte at 4\)")
    path.write_bytes(gzip.compress(b"text"))
    refuse("text", path, r"a\.txt: is ")
    path.write_bytes("naïve".encode("latin-1"))
    refuse("text", path, r"a\.txt: is not UTF-8 text \(byte 2\)")
    refuse("folder", tmp_path, r"a\.txt: is not UTF-8 .* narrow data\.pattern")
    refuse("jsonl", path, "is not UTF-8")
    refuse("csv", path, "is not UTF-8")
    refuse("parquet", path, r"a\.txt: is not a parquet file")


def test_unreadable_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("text")

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    refuse("text", path, r"a\.txt: cannot be read \(Permission denied\)")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"text": "b"', "line 3: is not JSON"),
        ('{"text": "b"} {"text": "c"}', "line 3: is not JSON"),
        ('["b"]', "line 3: is not an object"),
        ('{"body": "b", "n": 1}', "line 3: has no column 'text', .* one of: body, n"),
        ('{"text": 5}', "line 3: has no string in 'text'"),
    ],
)
def test_bad_json_line(tmp_path, line, match):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n' + line + "\n")
    refuse("jsonl", path, r"a\.jsonl " + match)


def test_missing_column(tmp_path):
    datasets.Dataset.from_dict({"body": ["a"], "n": [1]}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("body,n\na,1\n")
    for source in ("csv", "parquet"):
        match = rf"a\.{source}: has no column 'text', set data\.text_field to one of: body, n"
        refuse(source, tmp_path / f"a.{source}", match)


def test_bad_csv(tmp_path):
    (tmp_path / "a.csv").write_text('text,n\n"a,1\n')
    refuse("csv", tmp_path / "a.csv", r"a\.csv: is not CSV")


def test_hub_without_network():
    refuse("hub", "someone/some-text", "data.path = someone/some-text: cannot be had from the hub")


def test_progress_bars_are_off(tmp_path, capfd):
    datasets.enable_progress_bars()
    (tmp_path / "a.csv").write_text("text\na\nb\n")
    read("csv", tmp_path / "a.csv")
    assert capfd.readouterr() == ("", "")
