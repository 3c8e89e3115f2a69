"""Where caches live: folders that several processes share, and URLs (memory:// stands in for gs://)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from configs import text
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.data.places import Place, find_place
from jaxformer.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [(np.array([3, 4, 5], np.int32), 9), (np.array([], np.int32), 0), (np.array([6]), 2)]
TOKENS = [3, 4, 5, 6]

# A process that opens the cache of ten documents of one token, which take some time to make.
OPENS = """
import logging, sys, time
from pathlib import Path
import numpy as np
from jaxformer.data.places import Place

logging.basicConfig(level="WARNING", format="%(message)s", force=True)
folder, is_maker, pause = Path(sys.argv[1]), sys.argv[2] == "maker", float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()

def documents():
    print("tokenises", flush=True)
    for i in range(10):
        time.sleep(pause)
        yield np.full(1, i, np.int32), 1

cache = Place(folder, sys.argv[4], is_maker, patience=20.0).open("abc", 20, documents())
print(cache.tokens.tolist(), flush=True)
"""


class Process:
    """One of several processes that begin to open a cache at the same time."""

    def __init__(self, folder, role="maker", pause=0.05, url=""):
        self.ran = subprocess.Popen(
            [sys.executable, "-c", OPENS, str(folder), role, str(pause), url],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def go(self):
        assert self.ran.stdout.readline() == "ready\n"
        self.ran.stdin.write("\n")
        self.ran.stdin.flush()

    def end(self) -> tuple[list[str], list[str]]:
        out, err = self.ran.communicate(timeout=60)
        assert self.ran.returncode == 0, err
        return out.splitlines(), err.splitlines()


def race(*processes: Process) -> list[tuple[list[str], list[str]]]:
    for process in processes:
        process.go()
    return [process.end() for process in processes]


@pytest.mark.parametrize("state", ["missing", "torn"])
def test_of_two_runs_one_tokenises_and_the_other_waits(tmp_path, state):
    if state == "torn":
        Place(tmp_path).open("abc", 20, DOCUMENTS)
        (tmp_path / "tokens-abc" / "tokens").write_bytes(b"")
    ends = race(Process(tmp_path), Process(tmp_path))
    assert [out[-1] for out, _ in ends] == [str(list(range(10)))] * 2
    assert sorted(len(out) for out, _ in ends) == [1, 2]  # one of them "tokenises"
    said = [line for _, err in ends for line in err if "waiting" in line]
    assert said == [f"waiting for another run to tokenise into {tmp_path / 'tokens-abc'}"]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens-abc"]  # no lock, no temporary


def test_other_processes_of_a_run_wait_for_process_0(tmp_path):
    other, maker = race(Process(tmp_path, "waits"), Process(tmp_path))
    assert other[0] == [str(list(range(10)))]
    assert [line for line in other[1] if "waiting" in line] == [
        f"waiting for process 0 to tokenise into {tmp_path / 'tokens-abc'}"
    ]
    assert maker[0] == ["tokenises", str(list(range(10)))]


def test_a_maker_that_is_killed_leaves_no_lock(tmp_path):
    process = Process(tmp_path, pause=5.0)
    process.go()
    assert process.ran.stdout.readline() == "tokenises\n"
    process.ran.send_signal(signal.SIGKILL)
    process.ran.communicate(timeout=60)
    left = {path.name.split(".tmp")[0] for path in tmp_path.iterdir()}
    assert left == {"tokens-abc", ".tokens-abc.lock"}
    assert Place(tmp_path, patience=0.0).open("abc", 20, DOCUMENTS).tokens.tolist() == TOKENS
    assert [path.name for path in tmp_path.iterdir()] == ["tokens-abc"]


def test_waiting_ends_where_nothing_happens(tmp_path, caplog):
    began = time.monotonic()
    with pytest.raises(UserError, match=r"not made by process 0: nothing has happened for 0\.3 s"):
        Place(tmp_path, is_maker=False, patience=0.3).open("abc", 20, DOCUMENTS)
    assert 0.3 < time.monotonic() - began < 5
    assert len(caplog.records) == 1


def truncate(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])


def flip(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 4
    (folder / name).write_bytes(content)


def empty(folder, name):
    (folder / name).write_bytes(b"")


def remove(folder, name):
    (folder / name).unlink()


DAMAGES = [truncate, flip, empty, remove]
FILES = ["tokens", "offsets", "bytes", "meta.json"]


def is_harmless(damage, file):
    return (damage, file) == (truncate, "meta.json")  # its last line break


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_never_read(tmp_path, caplog, damage, file):
    Place(tmp_path).open("abc", 20, DOCUMENTS)
    damage(tmp_path / "tokens-abc", file)
    if is_harmless(damage, file):
        assert Place(tmp_path).read("abc").tokens.tolist() == TOKENS
        return
    assert Place(tmp_path).read("abc") is None
    with pytest.raises(UserError, match="not made by process 0"):
        Place(tmp_path, is_maker=False, patience=0.0).open("abc", 20, DOCUMENTS)
    caplog.clear()
    assert Place(tmp_path).open("abc", 20, DOCUMENTS).tokens.tolist() == TOKENS
    assert ["tokenising again" in record.getMessage() for record in caplog.records] == [True]
    assert Place(tmp_path).read("abc") is not None


@pytest.fixture
def url():
    """A store in memory, as empty as at the beginning."""
    store = fsspec.filesystem("memory")
    yield "memory://bucket/tokens"
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)


def never():
    raise AssertionError("tokenised again")
    yield


def test_a_cache_at_a_url_is_made_once_and_copied(tmp_path, url):
    assert Place(tmp_path / "a", url).read("abc") is None
    Place(tmp_path / "a", url).open("abc", 20, DOCUMENTS)
    store = fsspec.filesystem("memory")
    assert sorted(Path(p).name for p in store.ls("/bucket/tokens/tokens-abc", detail=False)) == (
        sorted(FILES)
    )
    other = Place(tmp_path / "b", url).open("abc", 20, never())
    assert other.tokens.tolist() == TOKENS
    assert Place(tmp_path / "c", url, is_maker=False).open("abc", 20, never()).fingerprint == "abc"
    assert Place(tmp_path / "b").read("abc") is not None  # stays: a restart needs no network
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["tokens-abc"]


def test_a_cache_of_the_workdir_is_put_where_the_url_has_none(tmp_path, url):
    Place(tmp_path / "a").open("abc", 20, DOCUMENTS)
    Place(tmp_path / "a", url).open("abc", 20, never())
    assert Place(tmp_path / "b", url).read("abc").tokens.tolist() == TOKENS


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_at_a_url_is_made_again_and_put_right(tmp_path, url, caplog, damage, file):
    Place(tmp_path / "a", url).open("abc", 20, DOCUMENTS)
    store, remote = fsspec.filesystem("memory"), f"/bucket/tokens/tokens-abc/{file}"
    (tmp_path / "copy").mkdir()
    store.get_file(remote, str(tmp_path / "copy" / file))
    damage(tmp_path / "copy", file)
    if damage is remove:
        store.rm_file(remote)
    else:
        store.put_file(str(tmp_path / "copy" / file), remote)
    caplog.clear()
    cache = Place(tmp_path / "b", url).open(
        "abc", 20, never() if is_harmless(damage, file) else DOCUMENTS
    )
    assert cache.tokens.tolist() == TOKENS
    said = [record.getMessage() for record in caplog.records]
    silent = is_harmless(damage, file) or (damage, file) == (remove, "meta.json")
    assert [line.startswith(f"{url}/tokens-abc is ") for line in said] == ([] if silent else [True])
    assert Place(tmp_path / "c", url).open("abc", 20, never()).tokens.tolist() == TOKENS


def test_meta_is_written_last(tmp_path, url, monkeypatch):
    store, order = fsspec.filesystem("memory"), []
    put = type(store).put_file

    def watched(self, local, remote, *args, **options):
        order.append(Path(remote).name)
        return put(self, local, remote, *args, **options)

    monkeypatch.setattr(type(store), "put_file", watched)
    Place(tmp_path, url).open("abc", 20, DOCUMENTS)
    assert order == ["tokens", "offsets", "bytes", "meta.json"]


def test_two_runs_race_for_a_url(tmp_path):
    url = f"local://{tmp_path / 'store'}"
    ends = race(*(Process(tmp_path / name, "maker", 0.02, url) for name in "ab"))
    assert [out[-1] for out, _ in ends] == [str(list(range(10)))] * 2
    assert Place(tmp_path / "c", url).open("abc", 20, never()).tokens.tolist() == list(range(10))


def test_a_url_that_cannot_be_used_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"data\.cache = nowhere://x: cannot be used"):
        Place(tmp_path, "nowhere://x").open("abc", 20, DOCUMENTS)
    if "gs" not in installed():
        with pytest.raises(UserError, match=r"data\.cache = gs://x: needs a package .*gcsfs"):
            Place(tmp_path, "gs://x").open("abc", 20, DOCUMENTS)


def installed() -> set[str]:
    try:
        import gcsfs  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return set()
    return {"gs"}


def config(path, **changes) -> RunConfig:
    c = text.get_config()
    c.data.update(path=str(path), length=16)
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of the text\n" for i in range(200)))
    return path


def test_the_config_names_the_place(path, tmp_path, url):
    workdir, shared = tmp_path / "run", tmp_path / "shared"
    assert find_place(config(path).data, workdir) == Place(workdir)
    assert find_place(config(path, **{"data.cache": str(shared)}).data, workdir) == Place(shared)
    assert find_place(config(path, **{"data.cache": url}).data, workdir) == Place(workdir, url)
    assert find_place(config(path, **{"data.cache": url}).data, None) == Place(None)


def test_runs_share_a_folder_and_other_data_or_tokenizers_do_not(path, tmp_path):
    shared = tmp_path / "shared"
    cfg = config(path, **{"data.cache": str(shared)})
    first = open_data(cfg, tmp_path / "one")
    files = {file: file.stat().st_mtime_ns for file in shared.rglob("*") if file.is_file()}
    second = open_data(cfg, tmp_path / "two")
    assert second.train.fingerprint == first.train.fingerprint
    assert {file: file.stat().st_mtime_ns for file in files} == files
    assert not list((tmp_path / "two").glob("tokens-*"))
    other = {"data.tokenizer.kind": "byte", "data.tokenizer.vocab_size": 0}
    other = config(path, **other, **{"data.cache": str(shared)})
    open_data(other, None)
    assert len(list(shared.iterdir())) == 2  # without a workdir nothing is written
    open_data(other, tmp_path / "three")
    assert len(list(shared.iterdir())) == 4
    path.write_text(path.read_text() + "more\n")
    open_data(cfg, tmp_path / "four")
    assert len(list(shared.iterdir())) == 6


def test_a_cache_that_cannot_be_written_is_one_line(path, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cfg = config(path, **{"data.cache": str(tmp_path / "file")})
    with pytest.raises(UserError, match=r"file: cannot hold the tokens \(File exists\)"):
        open_data(cfg, tmp_path / "run")


def test_the_cache_may_move(path, tmp_path):
    from jaxformer.config.changes import config_differences

    moved = config(path, **{"data.cache": "gs://elsewhere"})
    assert config_differences(config(path), moved) == ""
    assert json.dumps(moved.to_dict())
