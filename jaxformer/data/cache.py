"""Documents tokenised once into a folder of flat files that are memory-mapped.

A folder `tokens-<fingerprint>` holds `tokens` (uint8, 16 or 32), `offsets` (int64, one more than
documents), `bytes` (int64 per document: the UTF-8 bytes that its targets stand for) and meta.json
with the sizes and SHA-256 of the three. It is written under another name and renamed, and verified
when it is opened; one that is torn or of other content is made again.
"""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
FILES = ("tokens", "offsets", "bytes")
Document = tuple[np.ndarray, int]  # token ids, bytes that its targets stand for

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TokenCache:
    """Document d is `tokens[offsets[d]:offsets[d + 1]]`."""

    tokens: np.ndarray
    offsets: np.ndarray
    bytes: np.ndarray
    fingerprint: str

    @property
    def num_documents(self) -> int:
        return len(self.bytes)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def document(self, index: int) -> np.ndarray:
        """The ids of one document."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def fingerprint(*parts: Any) -> str:
    """A short hash of JSON-able values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def open_cache(
    workdir: str | Path | None, name: str, vocab_size: int, documents: Iterable[Document]
) -> TokenCache:
    """Opens `workdir/tokens-<name>`, made from `documents` unless it is there and whole.

    Without a workdir nothing stays behind: the files are mapped and then unlinked.
    """
    if workdir is None:
        folder = Path(tempfile.mkdtemp(prefix="jaxformer-"))
        try:
            write_cache(folder, name, vocab_size, documents)
            return map_cache(folder, name)
        finally:
            shutil.rmtree(folder)
    folder = Path(workdir) / f"tokens-{name}"
    what = damage(folder, name)
    if what:
        if folder.exists():
            log.warning("%s %s: tokenising again", folder, what)
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"tokens-{name}.tmp-", dir=folder.parent))
        try:
            write_cache(temporary, name, vocab_size, documents)
            try:
                os.rename(temporary, folder)
            except OSError:  # another process was first, with equal content
                if damage(folder, name):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return map_cache(folder, name)


def read_cache(workdir: str | Path, name: str) -> TokenCache | None:
    """The cache of this name if it is there and whole."""
    folder = Path(workdir) / f"tokens-{name}"
    return None if damage(folder, name) else map_cache(folder, name)


def write_cache(folder: Path, name: str, vocab_size: int, documents: Iterable[Document]) -> None:
    """Writes a cache's files, meta.json last."""
    dtype = next(d for d in (np.uint8, np.uint16, np.uint32) if vocab_size <= np.iinfo(d).max + 1)
    lengths, sizes = [], []
    with open(folder / "tokens", "wb") as file:
        for ids, size in documents:
            file.write(ids.astype(dtype).tobytes())
            lengths.append(len(ids))
            sizes.append(size)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    offsets.tofile(folder / "offsets")
    np.array(sizes, np.int64).tofile(folder / "bytes")
    files = {n: _describe(folder / n) for n in FILES}
    meta = {"format": FORMAT, "fingerprint": name, "dtype": np.dtype(dtype).name, "files": files}
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    for path in (folder / "meta.json", *(folder / n for n in files)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def damage(folder: Path, name: str) -> str:
    """What is wrong with a cache folder; '' if nothing."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if (meta["format"], meta["fingerprint"]) != (FORMAT, name):
            return "holds other data"
        for file, expected in meta["files"].items():
            if (folder / file).stat().st_size != expected["size"]:
                return f"is torn (size of {file})"
            if _describe(folder / file) != expected:
                return f"is damaged (content of {file})"
    except (OSError, ValueError, KeyError, TypeError):
        return "is incomplete"
    return ""


def map_cache(folder: Path, name: str) -> TokenCache:
    """Maps a whole cache."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    size = meta["files"]["tokens"]["size"]  # an empty file cannot be mapped
    tokens = np.memmap(folder / "tokens", meta["dtype"], "r") if size else np.zeros(0, np.uint8)
    offsets = np.fromfile(folder / "offsets", np.int64)
    return TokenCache(tokens, offsets, np.fromfile(folder / "bytes", np.int64), name)
