"""Where token caches live: a folder of this machine or a shared one, or a URL such as gs://….

One process makes a cache and the others wait for it: process 0 of a run for its other processes,
and of runs that share a folder the one that locks it. Whoever did not make a cache verifies its
hashes before use. A URL holds copies: they are fetched into the run's folder, to be mapped there,
and written with meta.json last.
"""

import contextlib
import dataclasses
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from jaxformer.config import DataConfig
from jaxformer.data.cache import (
    FILES,
    Document,
    TokenCache,
    damage,
    map_cache,
    open_cache,
    read_cache,
)
from jaxformer.data.remote import Remote
from jaxformer.distributed import is_first
from jaxformer.errors import UserError

PATIENCE = 600.0  # seconds without any sign of life of whoever makes a cache
POLL, REMOTE_POLL = 0.2, 5.0

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Place:
    """`folder` None leaves nothing on the disk; `is_maker` False waits for another process."""

    folder: Path | None
    url: str = ""
    is_maker: bool = True
    patience: float = PATIENCE

    def read(self, name: str) -> TokenCache | None:
        """The cache of this name if it is there and whole."""
        if self.folder is None:
            return None
        cache = read_cache(self.folder, name)
        if cache is None and self.url:
            with _disk_errors(self.folder):
                cache = self._fetch(name, self.folder)
        return cache

    def open(self, name: str, vocab_size: int, documents: Iterable[Document]) -> TokenCache:
        """The cache of this name, made from `documents` where it is missing or damaged."""
        if self.folder is None:
            return open_cache(None, name, vocab_size, documents)
        with _disk_errors(self.folder):
            if not self.is_maker:
                return self._await(name)
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = self.folder / f"tokens-{name}"
            is_new = bool(damage(folder, name))
            if not is_new:
                cache = map_cache(folder, name)
            elif self.url and (fetched := self._fetch(name, self.folder)):
                return fetched
            else:
                cache = self._make(name, vocab_size, documents)
        if self.url:
            Remote(self.url).put(folder, name, is_new)
        return cache

    def _make(self, name: str, vocab_size: int, documents: Iterable[Document]) -> TokenCache:
        """Makes the cache unless another process, which is waited for, does so first."""
        assert self.folder is not None
        lock = self.folder / f".tokens-{name}.lock"
        held: list[int] = []

        def is_mine() -> bool:
            held.extend(_try_lock(lock))
            return bool(held)

        self._wait(is_mine, self.folder / f"tokens-{name}", "another run")
        try:
            for left in self.folder.glob(f"tokens-{name}.tmp-*"):  # of makers that were killed
                shutil.rmtree(left, ignore_errors=True)
            return open_cache(self.folder, name, vocab_size, documents)
        finally:
            lock.unlink(missing_ok=True)
            os.close(held[0])

    def _await(self, name: str) -> TokenCache:
        """The cache that process 0 makes."""
        assert self.folder is not None
        found: list[TokenCache] = []

        def is_there() -> bool:
            cache = self.read(name)
            found.extend([cache] if cache else [])
            return bool(found)

        self._wait(is_there, self.folder / f"tokens-{name}", "process 0")
        return found[0]

    def _wait(self, is_over: Callable[[], bool], folder: Path, maker: str) -> None:
        """Waits as long as there are signs of life; says so once. Raises UserError."""
        if is_over():
            return
        log.warning("waiting for %s to tokenise into %s", maker, folder)
        last, seen = time.monotonic(), -1
        while not is_over():
            if (size := _size(folder)) != seen:
                last, seen = time.monotonic(), size
            if time.monotonic() - last > self.patience:
                what = f"is not made by {maker}: nothing has happened for {self.patience:g} s"
                mend = "end that process, or set data.cache to another folder that all can see"
                raise UserError(str(folder), what, mend)
            time.sleep(POLL if not self.url else REMOTE_POLL)

    def _fetch(self, name: str, parent: Path) -> TokenCache | None:
        """A copy of the cache at the URL, if there is one and it is whole."""
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / f"tokens-{name}"
        with tempfile.TemporaryDirectory(prefix=f"tokens-{name}.get-", dir=parent) as temporary:
            copy = Path(temporary) / "copy"
            copy.mkdir()
            if not Remote(self.url).get(copy, name):
                return None
            if what := damage(copy, name):
                if self.is_maker:
                    log.warning("%s/tokens-%s %s", self.url.rstrip("/"), name, what)
                return None
            if folder.exists():
                shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process was first
                os.rename(copy, folder)
        return read_cache(parent, name)


def find_place(cfg: DataConfig, workdir: Path | None) -> Place:
    """Where a run keeps its caches."""
    if workdir is None:  # nothing is written
        return Place(None)
    if "://" in cfg.cache:
        return Place(workdir, cfg.cache, is_first())
    return Place(Path(os.path.expanduser(cfg.cache)) if cfg.cache else workdir, "", is_first())


def _try_lock(path: Path) -> list[int]:
    """The file descriptor that holds the lock, until it is closed or the process ends; or none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return [descriptor]
    except (BlockingIOError, FileNotFoundError):
        pass  # held, or its holder has just removed it
    except OSError:
        return [descriptor]  # a file system without locks: the first rename wins
    os.close(descriptor)
    return []


def _size(folder: Path) -> int:
    """Bytes that are written so far of a cache and of what will be renamed to it."""
    names = [*FILES, "meta.json"]
    files = (file for name in names for file in folder.parent.glob(f"{folder.name}*/{name}"))
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = f"cannot hold the tokens ({reason})"
        raise UserError(str(folder), what, "make room or set data.cache to another folder")
