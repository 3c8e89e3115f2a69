"""Files that are well-formed but hold something other than text, and damaged ones."""

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.data.test_sources import read, refuse


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (rb'{"text": "half \ud800 of one"}', "line 1: holds half a character"),
        (b'{"text":' + b"[" * 100_000, "line 1: is not JSON"),
        (b'{"n":' + b"9" * 5000 + b"}", "line 1: is not JSON"),
    ],
)
def test_odd_json(tmp_path, content, match):
    (tmp_path / "a.jsonl").write_bytes(content + b"\n")
    refuse("jsonl", tmp_path / "a.jsonl", r"a\.jsonl " + match)


def test_csv_without_rows(tmp_path):
    (tmp_path / "a.csv").write_text("n,text\r\n")
    refuse("csv", tmp_path / "a.csv", r"a\.csv: holds no text")
    (tmp_path / "b.csv").write_text("n,text\n1,a\n2,b\n")
    assert read("csv", tmp_path / "*.csv") == (["a"], ["b"])


def test_csv_errors_are_said_once(tmp_path, caplog, capfd):
    (tmp_path / "a.csv").write_text('text,n\n"a,1\n')
    refuse("csv", tmp_path / "a.csv", r"a\.csv: is not CSV")
    assert not caplog.records
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pa.array([1, 2]), "has int64 in column 'text', not text"),
        (pa.array([["a"], ["b"]]), "has list.* not text"),
        (pa.array([b"a", b"b"]), "has binary in column 'text', not text"),
        (pa.nulls(2), "holds no text"),
        (pa.array([], pa.string()), "holds no text"),
    ],
)
def test_parquet_without_text(tmp_path, column, match):
    pyarrow.parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    refuse("parquet", tmp_path / "a.parquet", rf"a\.parquet: {match}")


def test_parquet_strings_of_any_type(tmp_path):
    column = pa.array(["a", None, "b"])
    for kind in (column, column.dictionary_encode(), column.cast(pa.large_string())):
        pyarrow.parquet.write_table(pa.table({"text": kind}), tmp_path / "a.parquet")
        assert read("parquet", tmp_path / "a.parquet") == (["a"], ["b"])


def test_damaged_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": ["some text"] * 20}), path)
    path.write_bytes(b"PAR1" + b"\xee" * 56 + path.read_bytes()[60:])
    refuse("parquet", path, r"a\.parquet: is damaged")
