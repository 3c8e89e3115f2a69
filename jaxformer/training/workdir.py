"""A run directory: who may write to it, and whether a config may go on in it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxformer.config import RunConfig
from jaxformer.distributed import is_first
from jaxformer.errors import UserError

# What a restart may change: none of it alters the numbers of a step.
MUTABLE = (
    "train.num_steps",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_latest",
    "train.keep_best",
    "train.max_skipped_steps",
    "train.check_every",
    "eval.",
    "mesh.",
)


_held: set[Path] = set()


def writable(workdir: str | os.PathLike[str]) -> Path:
    """Makes the directory where it is missing; raises UserError where it cannot be written."""
    path = Path(workdir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with open(path / ".lock", "a", encoding="utf-8"):
            return path
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise UserError(f"workdir {path}", what, "choose another --workdir") from error


@contextlib.contextmanager
def locked(workdir: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes the directory and holds it for this process; the lock ends with the process.

    A process that holds it may take it again within; of several processes of a run, the first
    holds it for all. Raises UserError where it cannot be written or another run holds it.
    """
    path = writable(workdir)
    if path in _held or not is_first():
        yield path
        return
    with open(path / ".lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise UserError(
                f"workdir {path}",
                f"is in use by process {file.read().strip() or 'unknown'}",
                "wait for it or choose another --workdir",
            ) from error
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        _held.add(path)
        try:
            yield path
        finally:
            _held.discard(path)


def check_restart(workdir: Path, cfg: RunConfig) -> None:
    """Raises UserError where the run in `workdir` was started with a config that differs."""
    path = workdir / "config.json"
    if not path.exists():
        return
    differences = config_differences(RunConfig.load(path), cfg)
    if differences:
        listed = "; ".join(f"{name} was {old!r}, now {new!r}" for name, old, new in differences)
        raise UserError(
            f"workdir {workdir}",
            f"holds a run of another config: {listed}",
            "set what differs back to what it was or use another --workdir",
        )


def config_differences(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """Fields that differ and must not, as (path, old, new)."""
    olds, news = _fields(old.to_dict()), _fields(new.to_dict())
    return [
        (name, olds[name], news[name])
        for name in news
        if olds[name] != news[name] and not name.startswith(MUTABLE)
    ]


def save_config(workdir: Path, cfg: RunConfig) -> None:
    """Writes config.json by rename, so that a kill leaves the old one or the new one."""
    temporary = workdir / "config.json.tmp"
    cfg.save(temporary)
    os.replace(temporary, workdir / "config.json")


def _fields(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        fields |= _fields(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return fields
