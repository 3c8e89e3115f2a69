"""Examples of several columns, read line by line from local files: pairs, texts with labels."""

import contextlib
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxformer.config import DataConfig
from jaxformer.errors import UserError

Row = tuple[str, ...]
Fields = Mapping[str, str]  # a field of the data section -> the column that it names

csv.field_size_limit(2**31 - 1)  # a document may be one field


def read_rows(cfg: DataConfig, files: Iterable[str | Path], fields: Fields) -> Iterator[Row]:
    """The fields of every row in order, as text; UserError names file and line."""
    for file in files:
        yield from READERS[cfg.source](Path(file), fields, cfg.column_names)


def read_parallel(sources: list[Path], targets: list[Path]) -> Iterator[Row]:
    """Line n of a source file with line n of its target file; gzipped where named .gz."""
    if len(sources) != len(targets):
        what = f"names {len(targets)} files for the {len(sources)} of data.path"
        raise UserError("data.target_path", what, "give one target file for each source file")
    for source, target in zip(sources, targets, strict=True):
        sides = [_lines(source), _lines(target)]
        if len(sides[0]) != len(sides[1]):
            what = f"has {len(sides[1])} lines, {source} has {len(sides[0])}"
            raise UserError(str(target), what, "line n must translate line n")
        yield from zip(*sides, strict=True)


def read_text(path: Path) -> str:
    """The file's text, line breaks as they are; UserError unless it is UTF-8."""
    with _reading(path):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    return _decode(path, content, 0)


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines without their \\n, read as they are asked for; UserError."""
    start = 0
    with _reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        for line in file:
            yield _decode(path, line, start).removesuffix("\n")
            start += len(line)


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where it stands, for errors, and the object of each line that is not empty; UserError."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(where, f"is not JSON ({error})", "give one object a line")
        if not isinstance(value, dict):
            raise UserError(where, "is not an object", 'give one object a line, {"name": value, …}')
        yield where, value


def string_of(where: str, value: Mapping[str, Any], field: str) -> str:
    """The text of a field; UserError where it is absent or no text."""
    if field not in value:
        has = ", ".join(map(repr, list(value)[:10]))
        raise UserError(where, f"has no field {field!r}", f"it has {has or 'none'}: add it")
    return _text(where, value[field], field, False, False)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", "") or str(error) or type(error).__name__
        raise UserError(str(path), f"cannot be read ({reason})", "check the file")


def _decode(path: Path, content: bytes, start: int) -> str:
    """The text of a file's bytes from `start` on."""
    mend = "give UTF-8 text (in a folder, narrow data.pattern)"
    if b"\0" in content:
        what = f"is binary (a zero byte at {start + content.index(0)})"
        raise UserError(str(path), what, mend)
    try:
        return content.decode("utf-8" if start else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(str(path), f"is not UTF-8 text (byte {start + error.start})", mend)


def no_column(where: str, field: str, column: str, columns: Iterable[Any]) -> UserError:
    columns = list(map(str, columns))
    names = ", ".join(columns[:10]) + (", …" if len(columns) > 10 else "")
    return UserError(where, f"has no column {column!r}", f"set data.{field} to one of: {names}")


def _lines(path: Path) -> list[str]:
    """Lines end with \\n or \\r\\n only: other separators of Unicode are part of a sentence."""
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines if lines[-1] else lines[:-1]


def _json_lines(path: Path, fields: Fields, _: Row) -> Iterator[Row]:
    for where, value in json_objects(path):
        yield _pick(where, value, fields)


def _csv(path: Path, fields: Fields, columns: Row) -> Iterator[Row]:
    """Comma-separated: quotes may hold commas and line breaks."""
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        yield from _table(path, fields, columns, rows, lambda: rows.line_num)
    except csv.Error as error:
        what = f"is not CSV (line {rows.line_num}: {error})"
        raise UserError(str(path), what, "mend the file")


def _tsv(path: Path, fields: Fields, columns: Row) -> Iterator[Row]:
    """Tab-separated: one row a line, quotes mean nothing."""
    number = 0

    def rows() -> Iterator[list[str]]:
        nonlocal number
        for line in _lines(path):
            number += 1
            yield line.split("\t") if line else []

    yield from _table(path, fields, columns, rows(), lambda: number)


def _table(
    path: Path, fields: Fields, columns: Row, rows: Iterator[list[str]], line: Callable[[], int]
) -> Iterator[Row]:
    names = list(columns) or next(rows, [])
    places = []
    for field, column in fields.items():
        if column not in names:
            raise no_column(str(path), field, column, names)
        places.append(names.index(column))
    for row in rows:
        if not row:
            continue
        if len(row) != len(names):
            what = f"has {len(row)} columns, not the {len(names)} of {', '.join(names)}"
            raise UserError(f"{path} line {line()}", what, "mend the line")
        yield tuple(row[place] for place in places)


def _parquet(path: Path, fields: Fields, _: Row) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(str(path), f"is not a parquet file ({error})", "name one")
    with file:
        for field, column in fields.items():
            if column not in file.schema_arrow.names:
                raise no_column(str(path), field, column, file.schema_arrow.names)
        wanted = list(dict.fromkeys(fields.values()))
        batches = (batch.to_pylist() for batch in file.iter_batches(columns=wanted))
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                reason = str(error).splitlines()[0]
                raise UserError(str(path), f"is damaged ({reason})", "mend the file")
            if batch is None:
                return
            for value in batch:
                yield _pick(
                    str(path), {k: "" if v is None else v for k, v in value.items()}, fields
                )


def _pick(where: str, value: Mapping[str, Any], fields: Fields) -> Row:
    for field, column in fields.items():
        if column not in value:
            raise no_column(where, field, column, value)
    labelled = "label_field" in fields
    return tuple(
        _text(where, value[column], column, labelled, field == "label_field")
        for field, column in fields.items()
    )


def _text(where: str, value: Any, column: str, may_list: bool, may_count: bool) -> str:
    """Strings as they are; classes also as whole numbers; words and their classes also as lists."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(where, "holds half a character (a lone surrogate)", "leave it out")
        return value
    if may_count and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if may_list and isinstance(value, list):
        parts = [_text(where, part, column, False, may_count) for part in value]
        if all(len(part.split()) == 1 for part in parts):
            return " ".join(parts)
    raise UserError(where, f"has no string in {column!r}", "give text there")


READERS: dict[str, Callable[[Path, Fields, Row], Iterator[Row]]] = {
    "jsonl": _json_lines,
    "csv": _csv,
    "tsv": _tsv,
    "parquet": _parquet,
}
