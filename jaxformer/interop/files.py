"""Tensors in safetensors files, read one at a time: nothing but headers is read before."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import UserError
from jaxformer.interop.fields import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
MAX_SHARD = 5 * 2**30  # bytes of a file that is written


class Stored(NamedTuple):
    """Where a tensor is and what it is, from the file's header."""

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype


def find_tensors(path: Path) -> dict[str, Stored]:
    """All tensors of a folder, by name, or of one file. Raises UserError for damaged files."""
    found: dict[str, Stored] = {}
    for file, names in _find_files(path).items():
        here = _header(file)
        if names is not None and (missing := sorted(names - here.keys())):
            what = f"lacks {missing[0]}, which {INDEX} says it has"
            raise UserError(str(file), what, "copy both once more")
        found |= here
    return found


def read_tensor(name: str, stored: Stored) -> np.ndarray:
    """One tensor, an array of its own. Raises UserError where the file cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(stored.file, framework="np") as file:
            return file.get_tensor(name)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise _damaged(stored.file, error) from error


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray], limit: int = MAX_SHARD) -> None:
    """Writes one file, or several of at most `limit` bytes (one tensor at least) and their index.

    The weights of the model that the folder held before are removed once these are written.
    """
    from safetensors.numpy import save_file

    shards: list[dict[str, np.ndarray]] = [{}]
    room = limit
    for name, x in tensors.items():
        if x.nbytes > room and shards[-1]:
            shards.append({})
            room = limit
        room -= x.nbytes
        shards[-1][name] = x
    names = [WEIGHTS]
    if len(shards) > 1:
        names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, 1 + len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(_contiguous(shard), folder / f"{name}.partial", {"format": "pt"})
    for old in [folder / INDEX, *filter(_is_ours, folder.glob("*.safetensors"))]:
        old.unlink(missing_ok=True)
    for name in names:
        os.replace(folder / f"{name}.partial", folder / name)
    if len(shards) > 1:
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(x.nbytes for x in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _is_ours(file: Path) -> bool:
    """Whether the file has a name that `write_tensors`, and the library, give."""
    return bool(re.fullmatch(r"model(-\d{5}-of-\d{5})?\.safetensors", file.name))


def _contiguous(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(x) for name, x in tensors.items()}


def _find_files(path: Path) -> dict[Path, set[str] | None]:
    """The files, each with the names that an index says it has."""
    if path.is_file():
        return {path: None}
    index = path / INDEX
    if index.exists() and not (path / WEIGHTS).exists():
        where = read_json(index).get("weight_map")
        if not isinstance(where, dict) or not where:
            raise UserError(str(index), "has no weight_map", "copy it once more")
        names: dict[Path, set[str] | None] = {}
        for name, file in where.items():
            if os.path.basename(str(file)) != file:
                raise UserError(str(index), f"names {file!r}", "shards lie beside it")
            names.setdefault(path / file, set()).add(name)  # pyright: ignore[reportOptionalMemberAccess]
        for file in names:
            if not file.is_file():
                what = f"is missing: {INDEX} names {len(names)} shards"
                raise UserError(str(file), what, "copy it too")
        return names
    found = [path / WEIGHTS] if (path / WEIGHTS).exists() else sorted(path.glob("*.safetensors"))
    if not found:
        other = sorted(file.name for file in path.glob("*.bin"))
        what = f"has no {WEIGHTS}" + (f", only {other[0]}" if other else "")
        raise UserError(str(path), what, "save it with safetensors: pickles are not opened")
    if len(found) > 1:
        mend = f"name one of them {WEIGHTS}, or bring {INDEX}"
        raise UserError(str(path), f"has {len(found)} safetensors files and no index", mend)
    return {found[0]: None}


def _header(file: Path) -> dict[str, Stored]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        mend = "install the extra `hf`"
        raise UserError(str(file), "needs the package safetensors", mend) from error
    try:
        with safe_open(file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            found: dict[str, Any] = {
                name: (tuple(x.get_shape()), x.get_dtype()) for name, x in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise _damaged(file, error) from error
    for name, (_, dtype) in found.items():
        if dtype not in DTYPES:
            raise UserError(f"{file}: {name}", f"is of type {dtype}", "convert it to BF16 or F32")
    return {name: Stored(file, shape, np.dtype(DTYPES[d])) for name, (shape, d) in found.items()}


def _damaged(file: Path, error: Exception) -> UserError:
    reason = re.sub(r"\s+", " ", str(error)).strip()[:160]
    return UserError(
        str(file), f"is damaged or no safetensors file ({reason})", "copy it once more"
    )
