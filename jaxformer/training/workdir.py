"""A run directory: who may write to it, and whether a config may go on in it."""

import contextlib
import fcntl
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jaxformer.config import RunConfig
from jaxformer.config.changes import config_differences
from jaxformer.distributed import gather, is_alone, is_first, together
from jaxformer.errors import UserError, check_folder
from jaxformer.training.history import last_step

_held: set[Path] = set()


def writable(workdir: str | os.PathLike[str], flag: str = "workdir") -> Path:
    """Makes the directory where it is missing; raises UserError where it cannot be written.

    `flag` is the one that named it.
    """
    check_folder(f"--{flag}", workdir)
    path = Path(workdir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with open(path / ".lock", "a", encoding="utf-8"):
            return path
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise UserError(f"{flag} {path}", what, f"choose another --{flag}") from error


@contextlib.contextmanager
def locked(workdir: str | os.PathLike[str], flag: str = "workdir") -> Iterator[Path]:
    """Makes the directory and holds it for this process; the lock ends with the process.

    A process that holds it may take it again within; of several processes of a run, the first
    holds it for all. Raises UserError where it cannot be written or another run holds it.
    """
    path = writable(workdir, flag)
    if path in _held or not is_first():
        yield path
        return
    with open(path / ".lock", "r+", encoding="utf-8", errors="replace") as file:
        _take(file, path, flag)
        _held.add(path)
        try:
            yield path
        finally:
            _held.discard(path)
            with contextlib.suppress(OSError):  # the disk may be full or gone
                file.seek(0)
                file.truncate()


def check_shared(path: Path, flag: str = "workdir") -> None:
    """Raises UserError in all processes unless they have the same folder there. All must call it.

    On disks of their own, each would wait for files that only another can see.
    """
    if is_alone():
        return
    note, mine = path / ".shared", secrets.token_hex(8)
    with together():
        if is_first():
            note.write_text(mine, encoding="utf-8")
    word = gather(mine)[0]
    seen = gather(_appears(note, word))
    if is_first():
        note.unlink(missing_ok=True)
    if not all(seen):
        process = seen.index(False)
        what = f"is not the same folder in process {process} as in process 0"
        raise UserError(f"{flag} {path}", what, "give one on a file system that all hosts share")


def _appears(note: Path, word: str, seconds: float = 10.0) -> bool:
    """Whether the file says that, or does so soon: network file systems take their time."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if note.read_text(encoding="utf-8") == word:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


def _take(file: IO[str], path: Path, flag: str) -> None:
    """Locks the file and writes 'PID HOST' into it, which stays there if this process is killed."""
    here = socket.gethostname()
    pid, host = [*file.read().split(), "", ""][:2]
    pid = pid if re.fullmatch(r"[0-9]{1,9}", pid) else ""
    named = f"process {pid or 'unknown'}" + (f" on {host}" if host else "")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mend = f"wait for it or choose another --{flag}"
        raise UserError(f"{flag} {path}", f"is in use by {named}", mend)
    except OSError:  # this file system has no locks: go by the name
        if pid and (host not in ("", here) or _is_alive(int(pid))):
            what = f"is in use by {named}, as far as can be known without locks"
            raise UserError(f"{flag} {path}", what, f"if that has ended, remove {path / '.lock'}")
    if pid:
        line = f"taking over {path} from {named}, which ended without letting go"
        print(line, file=sys.stderr, flush=True)
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()} {here}\n")
    file.flush()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


@contextlib.contextmanager
def disk_errors(workdir: Path) -> Iterator[None]:
    """Turns what the file system refuses into one line; all that was saved stays as it is."""
    try:
        yield
    except OSError as error:
        where = error.filename or f"workdir {workdir}"
        mend = "mend it: the same command goes on from the newest checkpoint"
        raise UserError(f"{where}", f"cannot be used ({error.strerror or error})", mend) from error


def check_restart(workdir: Path, cfg: RunConfig) -> None:
    """Raises UserError where the run in `workdir` was started with a config that differs."""
    path = workdir / "config.json"
    if not path.exists():
        return  # where there is a checkpoint, the config in it is compared
    try:
        old = RunConfig.load(path)
    except UserError as error:
        mend = "bring it back, or remove it: every checkpoint holds it too"
        raise UserError(f"{path}", f"is damaged ({error.what})", mend)
    check_config(workdir, old, cfg)


def check_config(workdir: Path, old: RunConfig, new: RunConfig) -> None:
    """Raises UserError where `new` may not go on with what `old` began in `workdir`."""
    if listed := config_differences(old, new):
        raise UserError(
            f"workdir {workdir}",
            f"holds a run of another config: {listed}",
            "set what differs back to what it was or use another --workdir",
        )


def check_fresh(workdir: Path, cfg: RunConfig) -> None:
    """For a start at step 0: raises UserError where the run must have had a checkpoint.

    Lines of metrics without one are those of a run that was killed before its first save was
    whole. The save at step 2n waits for the one at n, so no such line is of a later step.
    """
    last = last_step(workdir / "metrics.jsonl")
    if last is None:
        return
    config = workdir / "config.json"
    every = (RunConfig.load(config) if config.exists() else cfg).train.checkpoint_every
    if every and last > 2 * every:
        raise UserError(
            f"workdir {workdir}",
            f"has metrics up to step {last} and no checkpoint",
            f"bring {workdir / 'checkpoints'} back or use another --workdir",
        )
    line = f"no checkpoint was saved by step {last}: starting at step 0"
    print(line, file=sys.stderr, flush=True)


def save_config(workdir: Path, cfg: RunConfig) -> None:
    """Writes config.json by rename, so that a kill leaves the old one or the new one."""
    temporary = workdir / "config.json.tmp"
    cfg.save(temporary)
    os.replace(temporary, workdir / "config.json")
