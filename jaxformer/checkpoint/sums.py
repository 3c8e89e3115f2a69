"""What a folder of files held when it was written, so that damage is known before it is read.

`sums.json` in the folder lists every file below the folder's own subfolders with its size and
XXH3-128, which keeps pace with the disk. A file that is missing, cut, emptied or flipped is named.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

NAME = "sums.json"
PIECE = 2**22  # bytes
THREADS = 4


def write_sums(folder: Path) -> None:
    """Describes all files as they are now."""
    text = json.dumps(_describe_all(folder, _names(folder)), indent=0)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def damage(folder: Path) -> str:
    """What is wrong with a folder that `write_sums` described; '' if nothing."""
    try:
        wanted = _read(folder / NAME)
        if not wanted:
            return f"{NAME} has changed"
        found = _describe_all(folder, list(wanted))
    except OSError as error:
        name = os.path.relpath(error.filename or folder, folder)
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        return f"{name} is missing" if gone else f"{name}: {error.strerror or error}"
    for name, (size, _) in wanted.items():
        if found[name] != wanted[name]:
            torn = found[name][0] != size
            return f"{name} has {found[name][0]} bytes of {size}" if torn else f"{name} has changed"
    return ""


def _read(path: Path) -> dict[str, list[Any]]:
    """What was written; empty where it is not that any more."""
    try:
        wanted = json.loads(path.read_bytes())
    except ValueError:
        return {}
    whole = isinstance(wanted, dict) and all(
        isinstance(pair, list) and list(map(type, pair)) == [int, str] for pair in wanted.values()
    )
    return wanted if whole else {}


def _names(folder: Path) -> list[str]:
    files = (path for path in folder.glob("*/**/*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _describe_all(folder: Path, names: list[str]) -> dict[str, list[Any]]:
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: _describe(folder / name), names), strict=True))


def _describe(path: Path) -> list[Any]:
    """[size, hash]"""
    digest, size = xxhash.xxh3_128(), 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return [size, digest.hexdigest()]
