"""Checkpoints: exact, strict, never the newest lost, and a damaged one never a fresh start."""

import dataclasses
import gc
import os
import re
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import sharding
from jaxformer.checkpoint import Checkpoints, Unreadable, store
from jaxformer.checkpoint.sums import NAME, damage, write_sums
from jaxformer.config import MeshConfig
from jaxformer.errors import UserError
from tests.training import tiny

CFG = tiny.config()
META = {"config": {"seed": 0}, "tokenizer": "abc"}


@pytest.fixture
def open_checkpoints(tmp_path):
    opened = []

    def open_one(latest=2, best=0, read_only=False):
        opened.append(Checkpoints(tmp_path, latest, best, read_only=read_only))
        return opened[-1]

    yield open_one
    for checkpoints in opened:
        checkpoints.close()


def state_at(step, cfg=CFG):
    state = tiny.program(cfg).state
    shift = lambda x: x + jnp.asarray(step, x.dtype)  # noqa: E731
    return jax.tree.map(shift, state)


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert all(
        x.dtype == y.dtype
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


def save(checkpoints, *steps, losses=None, meta=META):
    for i, step in enumerate(steps):
        checkpoints.save(step, state_at(step), meta, losses[i] if losses else None)
    checkpoints.wait()


def restore_newest(checkpoints, abstract):
    """What training does when it starts again."""
    step = checkpoints.newest()
    state = checkpoints.restore(step, abstract)
    checkpoints.set_aside()
    return step, state


def test_round_trip_of_state_and_meta(open_checkpoints):
    save(open_checkpoints(), 3, losses=[1.25])
    again = open_checkpoints(read_only=True)
    assert again.latest_step() == 3
    assert_equal(again.restore(3, tiny.program(CFG).abstract), state_at(3))
    assert again.meta(3) == {**META, "step": 3, "validation_loss": 1.25}


def test_parameters_alone_whatever_the_optimizer(open_checkpoints):
    save(open_checkpoints(), 3)
    abstract = tiny.program(CFG).abstract.params
    found = open_checkpoints(read_only=True).restore_params(3, abstract)
    assert_equal(found, state_at(3).params)


@pytest.mark.parametrize(
    ("best", "kept"), [(0, [4, 5]), (1, [2, 4, 5]), (2, [2, 3, 4, 5])], ids="best{}".format
)
def test_latest_and_best_are_kept_together(best, kept, open_checkpoints):
    checkpoints = open_checkpoints(2, best)
    save(checkpoints, 1, 2, 3, 4, 5, losses=[3.0, 1.0, 2.0, 4.0, 5.0])
    assert checkpoints.steps() == kept
    assert open_checkpoints(2, best, read_only=True).steps() == kept
    assert checkpoints.best_step() == min(kept, key=[9, 3, 1, 2, 4, 5].__getitem__)


def test_checkpoints_without_a_loss_are_not_best(open_checkpoints):
    checkpoints = open_checkpoints(1, 1)
    save(checkpoints, 1, 2, 3, 4, losses=[None, 2.0, float("nan"), None])
    assert checkpoints.steps() == [2, 4]
    assert checkpoints.best_step() == 2


@pytest.mark.parametrize("shape", [(8, 1), (2, 4)])
def test_restores_onto_a_mesh_and_back(shape, open_checkpoints):
    save(open_checkpoints(), 1)
    mesh = sharding.make_mesh(MeshConfig(*shape))
    abstract = tiny.program(CFG, mesh).abstract
    spread = open_checkpoints().restore(1, abstract)
    assert_equal(spread, state_at(1))
    for leaf, wanted in zip(jax.tree.leaves(spread), jax.tree.leaves(abstract), strict=True):
        assert leaf.sharding == wanted.sharding
    checkpoints = open_checkpoints()
    checkpoints.save(2, spread, META)
    checkpoints.wait()
    assert_equal(checkpoints.restore(2, tiny.program(CFG).abstract), state_at(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__d_model": 16}, r"embedding/table is float32\[11, 8\], .* says float32\[11, 16\]"),
        (
            {"model__num_layers": 2},
            r"layers/1/\S+ is absent, the config says float32.*and \d+ more",
        ),
        ({"model__tie_embeddings": False}, r"head/kernel is absent"),
        ({"model__norm": "rmsnorm"}, r"params/final_norm/bias is float32\[8\], .* says absent"),
        ({"model__scan_layers": True}, r"params/layers/0/"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(changes, words, open_checkpoints, tmp_path):
    save(open_checkpoints(), 1)
    other = tiny.program(tiny.config(**changes)).abstract
    for restore in (
        lambda c: c.restore(1, other),
        lambda c: restore_newest(c, other),
        lambda c: c.restore_params(1, other.params),
    ):
        with pytest.raises(UserError, match=words) as caught:
            restore(open_checkpoints())
        assert str(caught.value).count(";") <= 5
        diff = caught.value.details
        assert diff[:2] == (f"--- saved in {tmp_path}/checkpoints/1", "+++ wanted by the config")
        assert all(
            re.match(r"[-+] (params|opt_state)/\S+ \w+\[[\d, ]*\]$", line) for line in diff[2:]
        )
        assert len(diff) > 2
    assert open_checkpoints().steps() == [1]


def test_a_checkpoint_of_another_dtype_or_optimizer_is_refused(open_checkpoints):
    save(open_checkpoints(), 1)
    abstract = tiny.program(CFG).abstract
    cast = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=x.sharding), abstract.params
    )
    with pytest.raises(UserError, match=r"is float32\[.*\], the config says bfloat16"):
        open_checkpoints().restore_params(1, cast)
    step = jax.ShapeDtypeStruct((), jnp.float32, sharding=abstract.step.sharding)
    with pytest.raises(UserError, match=r"step is int32\[\], the config says float32\[\]"):
        open_checkpoints().restore(1, dataclasses.replace(abstract, step=step))
    with pytest.raises(UserError, match="opt_state/"):
        open_checkpoints().restore(1, tiny.program(CFG, sgd_norm=1.0).abstract)


def spoil(directory, how):
    if how == "no metadata":
        (directory / "state" / "_METADATA").unlink()
    elif how == "no manifest":
        (directory / "state" / "manifest.ocdbt").unlink()
    elif how == "torn metadata":
        text = (directory / "state" / "_METADATA").read_text()
        (directory / "state" / "_METADATA").write_text(text[: len(text) // 2])
    elif how == "no state":
        shutil.rmtree(directory / "state")
    else:  # every data file cut in half
        for path in (directory / "state").rglob("d/*"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HOWS = ("no metadata", "no manifest", "torn metadata", "no state", "cut data")


@pytest.mark.parametrize("how", HOWS)
def test_an_unreadable_newest_gives_way_to_the_one_before(how, open_checkpoints, capfd, tmp_path):
    save(open_checkpoints(3), 1, 2, 3)
    spoil(tmp_path / "checkpoints" / "3", how)
    checkpoints = open_checkpoints(3)
    step, state = restore_newest(checkpoints, tiny.program(CFG).abstract)
    assert step == 2
    assert_equal(state, state_at(2))
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("warning: ")
    assert "checkpoints/3: is damaged" in err
    assert err.endswith("using 2\n")
    assert (tmp_path / "checkpoints" / "3.unreadable").is_dir()
    save(checkpoints, 3)
    assert checkpoints.steps() == [1, 2, 3]
    assert_equal(open_checkpoints(3).restore(3, tiny.program(CFG).abstract), state_at(3))


def test_a_torn_array_is_told_in_one_line_and_never_read(open_checkpoints, tmp_path, capfd):
    """Arrays above a kilobyte lie in files of their own, whose reads Orbax cannot take back."""
    wide = tiny.config(model__d_model=32)
    for step in (1, 2):
        checkpoints = open_checkpoints()
        checkpoints.save(step, state_at(step, wide), META)
        checkpoints.wait()
    folder = tmp_path / "checkpoints" / "2" / "state"
    path = max(folder.rglob("d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    step, state = restore_newest(open_checkpoints(), tiny.program(wide).abstract)
    assert step == 1
    assert_equal(state, state_at(1, wide))
    gc.collect()
    assert capfd.readouterr().err.count("\n") == 1


def test_sums_name_whatever_is_not_as_it_was(tmp_path):
    names = {"state/a": b"0123456789", "state/d/b": b"", "meta/metadata": b"{}"}
    for name, content in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    write_sums(tmp_path)
    (tmp_path / "beside").write_text("written later")
    assert damage(tmp_path) == ""
    for name, content in names.items():
        path = tmp_path / name
        path.unlink()
        assert damage(tmp_path) == f"{name} is missing"
        path.write_bytes(content + b"!")
        assert damage(tmp_path) == f"{name} has {len(content) + 1} bytes of {len(content)}"
        if content:
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
            assert damage(tmp_path) == f"{name} has changed"
        path.write_bytes(content)
    whole = (tmp_path / NAME).read_bytes()
    for text in (
        b"",
        b"{}",
        b"[]",
        b'{"a": 1}',
        b'{"state/a": ["1", 2]}',
        whole[:-9],
        b"\xff" + whole,
    ):
        (tmp_path / NAME).write_bytes(text)
        assert damage(tmp_path) == f"{NAME} has changed", text
    (tmp_path / NAME).unlink()
    assert damage(tmp_path) == f"{NAME} is missing"


def test_a_flipped_bit_anywhere_is_found(open_checkpoints, tmp_path):
    """In all files that are read: state, meta and the sums themselves."""
    save(open_checkpoints(), 1)
    folder, flipped = tmp_path / "checkpoints" / "1", 0
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or (path.parent == folder and path.name != NAME):
            continue
        raw = path.read_bytes()
        place = 2 * len(raw) // 3
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(Unreadable, match="checkpoints/1: is damaged"):
            open_checkpoints(read_only=True).meta(1)
        path.write_bytes(raw)
        flipped += 1
    assert flipped > 10
    assert open_checkpoints(read_only=True).meta(1)["step"] == 1


def test_a_bug_is_not_called_damage(open_checkpoints, monkeypatch, capfd):
    save(open_checkpoints(), 1, 2)

    def wrong(*_):
        raise TypeError("a bug")

    monkeypatch.setattr(store, "read_arrays", wrong)
    with pytest.raises(TypeError, match="a bug"):
        restore_newest(open_checkpoints(), tiny.program(CFG).abstract)
    assert open_checkpoints().steps() == [1, 2]
    assert capfd.readouterr().err == ""


def test_a_step_that_is_unreadable_twice_is_set_aside_twice(open_checkpoints, tmp_path):
    for count in (1, 2):
        save(open_checkpoints(), *((1, 2) if count == 1 else (2,)))
        spoil(tmp_path / "checkpoints" / "2", "no manifest")
        step, _ = restore_newest(open_checkpoints(), tiny.program(CFG).abstract)
        assert step == 1
        assert len(list((tmp_path / "checkpoints").glob("2.unreadable*"))) == count


def test_nothing_readable_is_an_error_and_moves_nothing(open_checkpoints, tmp_path):
    save(open_checkpoints(), 1, 2)
    for step in ("1", "2"):
        spoil(tmp_path / "checkpoints" / step, "no manifest")
    with pytest.raises(UserError, match="checkpoints/2: is damaged"):
        restore_newest(open_checkpoints(), tiny.program(CFG).abstract)
    assert open_checkpoints().steps() == [1, 2]


def test_no_checkpoint(open_checkpoints, tmp_path):
    assert open_checkpoints(read_only=True).latest_step() is None
    assert not (tmp_path / "checkpoints").exists()
    checkpoints = open_checkpoints()
    assert checkpoints.newest() is None
    assert checkpoints.best_step() is None
    save(checkpoints, 4)
    with pytest.raises(UserError, match="has no checkpoint of step 5, it has 4"):
        checkpoints.restore(5, tiny.program(CFG).abstract)


def test_leftovers_of_a_killed_save_or_removal_are_removed(open_checkpoints, tmp_path):
    save(open_checkpoints(), 1)
    leftover = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    leftover.mkdir()
    (leftover / "half").write_text("")
    shutil.copytree(tmp_path / "checkpoints" / "1", tmp_path / "checkpoints" / "0.deleted")
    assert open_checkpoints(read_only=True).steps() == [1]
    assert leftover.exists()
    assert open_checkpoints().steps() == [1]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1"]


def test_saving_a_step_twice_is_an_error_not_a_silence(open_checkpoints):
    checkpoints = open_checkpoints()
    save(checkpoints, 2)
    with pytest.raises(RuntimeError, match="checkpoint 2 was not saved"):
        save(checkpoints, 2)


def test_a_failed_write_surfaces(open_checkpoints):
    checkpoints = open_checkpoints()
    save(checkpoints, 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(checkpoints, 2, meta={"config": object()})
    assert checkpoints.steps() == [1]


def test_the_best_stay_best_after_a_restart(open_checkpoints):
    save(open_checkpoints(1, 1), 1, 2, losses=[1.0, 3.0])
    checkpoints = open_checkpoints(1, 1)
    save(checkpoints, 3, 4, losses=[2.0, 4.0])
    assert checkpoints.steps() == [1, 4]


def test_checkpoints_that_are_gone_are_missed(open_checkpoints, tmp_path, capfd):
    save(open_checkpoints(3), 1, 2, 3)
    shutil.rmtree(tmp_path / "checkpoints" / "3")
    assert open_checkpoints(3).newest() == 2
    line = f"warning: {tmp_path}/checkpoints/3: was saved and is gone, using 2\n"
    assert capfd.readouterr().err == line
    shutil.rmtree(tmp_path / "checkpoints")
    for read_only in (True, False):
        with pytest.raises(UserError, match="checkpoints: has no checkpoint although step 3 was"):
            open_checkpoints(read_only=read_only).newest()


def test_a_folder_that_is_gone_is_made_again_or_told_in_one_line(open_checkpoints, tmp_path):
    checkpoints = open_checkpoints()
    save(checkpoints, 1)
    shutil.rmtree(tmp_path / "checkpoints")
    save(checkpoints, 2)
    assert open_checkpoints().steps() == [2]
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match=r"checkpoints: cannot be written \(\w"):
        save(checkpoints, 3)


FULL = """
import sys, jax, numpy as np
from jaxformer.checkpoint import Checkpoints
from jaxformer.command import guard
from absl import logging
logging.set_verbosity(logging.ERROR)

def main():
    checkpoints = Checkpoints(sys.argv[1], 3)
    rng = np.random.default_rng(0)
    try:
        for step in range(1, 9):
            state = {name: jax.numpy.asarray(rng.normal(size=(40, 800))) for name in "abc"}
            checkpoints.save(step, state, {"step": step})
        checkpoints.wait()
    finally:
        checkpoints.close()
    return 0

sys.exit(guard(main, False))
"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte; skips where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_in_one_line_and_loses_nothing(small_disk):
    """Three checkpoints of 400 kB do not fit."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(small_disk)],
        capture_output=True,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 2, done.stderr
    words = f"error: {small_disk}/checkpoints: cannot be written (No space left on device)"
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1, done.stderr
    assert time.monotonic() - began < 60  # and no thread of the failed save stays behind
    checkpoints = Checkpoints(small_disk, read_only=True)
    assert checkpoints.newest() == checkpoints.latest_step() > 0
    assert checkpoints.arrays(checkpoints.newest())["a"].shape == (40, 800)


def test_a_clock_that_jumps_does_not_fail_a_save(open_checkpoints, monkeypatch):
    now, calls = time.time(), []

    def jumping():
        calls.append(len(calls) % 3 * 30_000)  # up by eight hours and back
        return now + calls[-1]

    monkeypatch.setattr(time, "time", jumping)
    checkpoints = open_checkpoints()
    save(checkpoints, 1, 2)
    assert len(calls) > 10
    assert checkpoints.steps() == [1, 2]


def test_parameters_by_pattern(open_checkpoints):
    save(open_checkpoints(), 3)
    abstract = tiny.program(tiny.config(model__num_layers=2)).abstract.params
    checkpoints = open_checkpoints(read_only=True)
    found = checkpoints.restore_matching(3, abstract, ("embedding/*", "layers/0/*/query/*"))
    saved = state_at(3).params
    query = saved["layers"]["0"]["attention"]["query"] if "0" in saved["layers"] else None
    query = query or saved["layers"][0]["attention"]["query"]
    wanted = {"embedding/table": saved["embedding"]["table"]}
    wanted |= {f"layers/0/attention/query/{name}": leaf for name, leaf in query.items()}
    assert found.keys() == wanted.keys()
    for path, leaf in found.items():
        np.testing.assert_array_equal(leaf, wanted[path])
    with pytest.raises(UserError, match=r"train.init_paths: 'embeding/\*' matches no parameter"):
        checkpoints.restore_matching(3, abstract, ("embedding/*", "embeding/*"))
    with pytest.raises(UserError, match=r"layers/1/.* is absent, the config says"):
        checkpoints.restore_matching(3, abstract, ("layers/*",))
    wide = tiny.program(tiny.config(model__d_model=16)).abstract.params
    with pytest.raises(UserError, match=r"embedding/table is float32\[11, 8\], .*\[11, 16\]"):
        checkpoints.restore_matching(3, wide, ("embedding/*",))
