"""Documents from files, folders and the hub, as map-style Arrow datasets with one column `text`."""

import dataclasses
import fnmatch
import glob
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxformer.config import DataConfig
from jaxformer.data.readers import features, read_files, read_hub, reading
from jaxformer.errors import UserError

SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "env"}  # besides hidden folders


@dataclasses.dataclass(frozen=True)
class Texts:
    """Training and validation documents (`datasets.Dataset`s); no text is in both."""

    train: Any
    validation: Any

    def fingerprint(self) -> str:
        """SHA-256 of all texts in order."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation):
            for text in texts_of(split):
                digest.update(f"{len(text)} {text}".encode())
        return digest.hexdigest()


def texts_of(split: Any) -> Iterator[str]:
    """The texts of a dataset, read some at a time."""
    for batch in split.iter(batch_size=64):
        yield from batch["text"]


def find_files(cfg: DataConfig, workdir: str | Path | None = None, field: str = "") -> list[Path]:
    """The files that `cfg.path` names, in a fixed order; none for a hub name.

    Raises UserError; `field` is the one that is to be mended, by default that of training data.
    """
    if cfg.source == "hub":
        return []
    field = field or cfg.mixture.field
    path = Path(os.path.expanduser(cfg.path))
    if cfg.source == "folder":
        return _folder_files(path, cfg.pattern or "*", workdir, field)
    if path.is_dir():
        raise UserError(cfg.path, "is a folder", "name a file, or set data.source = folder")
    names = (
        [path] if path.exists() else [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
    )
    files = [p for p in names if p.is_file()]
    if not files:
        raise UserError(cfg.path, "does not exist", f"give {field} the name of a file")
    for file in files:
        if file.stat().st_size == 0:
            raise UserError(str(file), "is empty", "give a file with text in it")
    return files


def check_apart(files: list[list[Path]]) -> None:
    """Raises UserError where two sources of a mixture have a file in common."""
    seen: set[Path] = set()
    for part in files:
        own = {path.resolve() for path in part}
        for path in sorted(own & seen):
            what, mend = f"name {path} twice", "give each file once, with a weight"
            raise UserError("data.mixture.paths", what, mend)
        seen |= own


def files_fingerprint(files: list[Path]) -> list[str]:
    """SHA-256 of each file, in order: names and places do not matter."""
    hashes = []
    for path in files:
        with reading(path), open(path, "rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashes


def read_texts(
    cfg: DataConfig, files: list[Path], cache_dir: str, held_out: list[Path] | None = None
) -> Texts:
    """Reads all documents, keeping Arrow files in `cache_dir`, and splits them.

    Validation is `held_out`, files of their own, or a share of the others.
    """
    data = read_hub(cfg) if cfg.source == "hub" else read_files(cfg, files, cache_dir)
    data = _filled(data, cfg.path)
    if held_out:
        validation = read_files(cfg, held_out, cache_dir)
        return Texts(data, _filled(validation, cfg.validation_path))
    return _split(data, cfg.held_out)


def _filled(data: Any, path: str) -> Any:
    filled = [i for i, text in enumerate(data["text"]) if text and text.strip()]
    if not filled:
        raise UserError(path, "holds no text", "give data with text in it")
    return data.select(filled) if len(filled) < len(data) else data


def _split(data: Any, fraction: float) -> Texts:
    """Validation is the last documents, or the end of a single one, cut at a line break."""
    import datasets

    count = len(data)
    if count > 1:
        held_out = min(count - 1, max(1, round(count * fraction)))
        first = count - held_out
        return Texts(data.select(range(first)), data.select(range(first, count)))
    text = data[0]["text"]
    cut = int(len(text) * (1 - fraction))
    line = text.rfind("\n", 0, cut) + 1
    if line > cut - max(100, len(text) // 100):  # near enough to the share asked for
        cut = line or cut
    parts = ({"text": [part]} for part in (text[:cut], text[cut:]))
    return Texts(*(datasets.Dataset.from_dict(part, features=features()) for part in parts))


def _folder_files(folder: Path, pattern: str, workdir: str | Path | None, field: str) -> list[Path]:
    """Files below `folder` whose name (or path, if the pattern has a slash) matches, sorted."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(str(folder), what, f"give {field} the name of a folder")
    own = None if workdir is None else Path(workdir).resolve()
    found = []
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = [f for f in folders if not _is_skipped(here / f, own)]
        for name in names:
            path = here / name
            target = path.relative_to(folder).as_posix() if "/" in pattern else name
            if not name.startswith(".") and fnmatch.fnmatch(target, pattern) and path.is_file():
                found.append(path)
    files = [p for p in found if p.stat().st_size]
    if not files:
        what = f"has no file with text that matches {pattern!r}"
        raise UserError(str(folder), what, "set data.pattern, e.g. '*.txt'")
    return sorted(files, key=lambda p: p.relative_to(folder).as_posix())


def _is_skipped(folder: Path, own: Path | None) -> bool:
    hidden = folder.name.startswith(".") or folder.name in SKIPPED
    is_cache = folder.name.startswith("tokens-") and (folder / "meta.json").exists()
    return hidden or is_cache or (folder / "pyvenv.cfg").exists() or folder.resolve() == own
