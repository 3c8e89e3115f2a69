"""Strict settings for all tests, set before JAX starts a backend, and a few shared fixtures.

Warnings are errors (pyproject.toml), implicit rank promotion raises, the host shows 8 CPU devices,
nothing is fetched from a hub, and a run must leave no file behind in the repository.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"
CACHE_HOME = tempfile.mkdtemp(prefix="jaxformer-tests-")

# Environment variables, so that commands which tests start inherit them too.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HOME=CACHE_HOME,
    TOKENIZERS_PARALLELISM="false",
    MPLBACKEND="Agg",
    JAX_COMPILATION_CACHE_DIR=str(ROOT / ".pytest_cache" / "jax"),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_NUMPY_RANK_PROMOTION="raise",
    # Most of a test is XLA compiling: without optimisation it takes half the time.
    XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip(),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import pytest  # noqa: E402

from tests.builders import without_compile_cache  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)  # not inherited: commands see one device

_untracked = pytest.StashKey[set[str]]()


def untracked_files() -> set[str]:
    """Files of the repository that git neither tracks nor ignores; sources are somebody's work."""
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return {name for name in listed.stdout.splitlines() if not name.endswith((".py", ".md"))}


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # with xdist: only in the main process
        session.config.stash[_untracked] = untracked_files()


def pytest_sessionfinish(session: pytest.Session) -> None:
    before = session.config.stash.get(_untracked, None)
    if before is not None and (left := untracked_files() - before):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nFAILED: the tests left files in the repository: {sorted(left)}")


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE_HOME, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def programs_end_with_their_module() -> Iterator[None]:
    """A process that keeps every program of the suite grows to gigabytes, and has died of it."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """A function from the name of a shared data set to its path; skips where it is absent."""

    def path_of(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"no data set {name} in ../shared/data")
        return path

    return path_of


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def no_compile_cache() -> Iterator[None]:
    """`without_compile_cache` for a whole test."""
    with without_compile_cache():
        yield
