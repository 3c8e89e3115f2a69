"""Readers of one kind of source each: a map-style Arrow dataset with one column `text`.

`datasets` is imported where it is used: it takes a second, and the built-in tasks need none of it.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxformer.config import DataConfig
from jaxformer.data.columns import READERS, no_column, read_rows, read_text
from jaxformer.errors import UserError


def read_files(cfg: DataConfig, files: list[Path], cache_dir: str) -> Any:
    """Reads local files; Arrow files go to `cache_dir`. Raises UserError with the file's name."""
    import datasets
    from datasets.exceptions import DatasetGenerationError

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it logs is raised as well
    names = [str(p) for p in files]
    field = cfg.text_field or "text"
    if cfg.source == "parquet":
        return _read_parquet(names, field, cache_dir)
    parts = [cfg.source, field, cfg.columns, names]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    try:
        return datasets.Dataset.from_generator(
            _texts,
            features=features(),
            cache_dir=cache_dir,
            gen_kwargs={"cfg": cfg, "names": tuple(names)},  # a list would be a shard a file
            fingerprint=key,
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__
        raise


def read_hub(cfg: DataConfig) -> Any:
    """The train split of `owner/name` or `owner/name:subset`, kept in Hugging Face's own cache."""
    data = _load_hub(cfg, streaming=False)
    field = cfg.text_field or "text"
    if field not in data.column_names:
        raise no_column(cfg.path, "text_field", field, data.column_names)
    _check_type(cfg.path, field, data.data.schema.field(field).type)
    data = data.select_columns([field])
    return data.rename_column(field, "text") if field != "text" else data


def open_hub_stream(cfg: DataConfig) -> Any:
    """The same as an `IterableDataset`, of which only what is read is fetched."""
    data = _load_hub(cfg, streaming=True)
    field, columns = cfg.text_field or "text", data.column_names
    if columns is None:  # not told by the data set: its first example tells
        columns = list(next(iter(data), {}))
    if field not in columns:
        raise no_column(cfg.path, "text_field", field, columns)
    data = data.select_columns([field])
    return data.rename_column(field, "text") if field != "text" else data


def _load_hub(cfg: DataConfig, *, streaming: bool) -> Any:
    import datasets
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    datasets.disable_progress_bars()
    name, _, subset = cfg.path.partition(":")
    was_offline = constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except (
        Exception
    ):  # no network: whatever the HTTP library raises; offline, only the cache is left
        constants.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(name, subset or None, split="train", streaming=streaming)
    except Exception as error:  # a dozen kinds: not found, gated, offline, no such subset or split
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{cfg.mixture.field} = {cfg.path}",
            f"cannot be had from the hub ({reason})",
            "check the name and the network, or give a local file",
        )
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def features() -> Any:
    import datasets

    return datasets.Features({"text": datasets.Value("large_string")})


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turns what the system says about a file into a UserError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(str(path), f"cannot be read ({reason})", "check the file")


def _texts(cfg: DataConfig, names: Sequence[str]) -> Iterator[dict[str, str]]:
    if cfg.source in READERS:
        rows = read_rows(cfg, names, {"text_field": cfg.text_field or "text"})
        texts = (text for (text,) in rows)
    else:
        texts = (read_text(Path(name)) for name in names)
    is_empty = True
    for text in texts:
        is_empty = False
        yield {"text": text}
    if is_empty:  # datasets takes none without rows
        raise _no_text(names)


def _read_parquet(names: list[str], field: str, cache_dir: str) -> Any:
    import datasets
    import pyarrow
    import pyarrow.parquet
    from datasets.exceptions import DatasetGenerationError

    filled: list[Any] = []  # datasets takes no file without rows
    for name in names:
        try:
            with pyarrow.parquet.ParquetFile(name) as file:
                columns, rows = file.schema_arrow, file.metadata.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(name, f"is not a parquet file ({error})", "name one")
        if field not in columns.names:
            raise no_column(name, "text_field", field, columns.names)
        _check_type(name, field, columns.field(field).type)
        filled += [name] if rows else []
    if not filled:
        raise _no_text(names)
    try:
        data = datasets.Dataset.from_parquet(filled, cache_dir=cache_dir, columns=[field])
    except DatasetGenerationError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(", ".join(names), f"is damaged ({reason})", "mend the file")
    return data.rename_column(field, "text") if field != "text" else data


def _check_type(where: str, field: str, kind: Any) -> None:
    """Refuses a column of an Arrow type that is not text."""
    import pyarrow

    value = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    is_text = pyarrow.types.is_string(value) or pyarrow.types.is_large_string(value)
    if not (is_text or pyarrow.types.is_null(value)):
        raise UserError(where, f"has {kind} in column {field!r}, not text", "set data.text_field")


def _no_text(names: Sequence[str]) -> UserError:
    return UserError(", ".join(names), "holds no text", "give data with text in it")
