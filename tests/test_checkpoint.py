"""Checkpoints: exact, strict, never the newest lost, and a damaged one never a fresh start."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import sharding
from jaxformer.checkpoint import Checkpoints
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
def test_a_checkpoint_of_another_model_is_refused(changes, words, open_checkpoints):
    save(open_checkpoints(), 1)
    other = tiny.program(tiny.config(**changes)).abstract
    for restore in (
        lambda c: c.restore(1, other),
        lambda c: c.restore_latest(other),
        lambda c: c.restore_params(1, other.params),
    ):
        with pytest.raises(UserError, match=words) as caught:
            restore(open_checkpoints())
        assert str(caught.value).count(";") <= 5
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


def damage(directory, how):
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
    damage(tmp_path / "checkpoints" / "3", how)
    checkpoints = open_checkpoints(3)
    step, state = checkpoints.restore_latest(tiny.program(CFG).abstract)
    assert step == 2
    assert_equal(state, state_at(2))
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("warning: ")
    assert "checkpoints/3: cannot be read" in err
    assert err.endswith("using 2\n")
    assert (tmp_path / "checkpoints" / "3.unreadable").is_dir()
    save(checkpoints, 3)
    assert checkpoints.steps() == [1, 2, 3]
    assert_equal(open_checkpoints(3).restore(3, tiny.program(CFG).abstract), state_at(3))


def test_a_torn_array_is_unreadable(open_checkpoints, tmp_path, capfd):
    """Arrays above a kilobyte lie in files of their own, which Orbax reports in another way."""
    wide = tiny.config(model__d_model=32)
    for step in (1, 2):
        checkpoints = open_checkpoints()
        checkpoints.save(step, state_at(step, wide), META)
        checkpoints.wait()
    folder = tmp_path / "checkpoints" / "2" / "state"
    path = max(folder.rglob("d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    step, state = open_checkpoints().restore_latest(tiny.program(wide).abstract)
    assert step == 1
    assert_equal(state, state_at(1, wide))
    assert capfd.readouterr().err.count("\n") == 1


def test_a_step_that_is_unreadable_twice_is_set_aside_twice(open_checkpoints, tmp_path):
    for count in (1, 2):
        save(open_checkpoints(), *((1, 2) if count == 1 else (2,)))
        damage(tmp_path / "checkpoints" / "2", "no manifest")
        step, _ = open_checkpoints().restore_latest(tiny.program(CFG).abstract)
        assert step == 1
        assert len(list((tmp_path / "checkpoints").glob("2.unreadable*"))) == count


def test_nothing_readable_is_an_error_and_moves_nothing(open_checkpoints, tmp_path):
    save(open_checkpoints(), 1, 2)
    for step in ("1", "2"):
        damage(tmp_path / "checkpoints" / step, "no manifest")
    with pytest.raises(UserError, match="checkpoints/2: cannot be read"):
        open_checkpoints().restore_latest(tiny.program(CFG).abstract)
    assert open_checkpoints().steps() == [1, 2]


def test_no_checkpoint(open_checkpoints, tmp_path):
    assert open_checkpoints(read_only=True).latest_step() is None
    assert not (tmp_path / "checkpoints").exists()
    checkpoints = open_checkpoints()
    assert checkpoints.restore_latest(tiny.program(CFG).abstract) is None
    assert checkpoints.best_step() is None
    save(checkpoints, 4)
    with pytest.raises(UserError, match="has no checkpoint of step 5, it has 4"):
        checkpoints.restore(5, tiny.program(CFG).abstract)


def test_leftovers_of_a_killed_save_are_removed(open_checkpoints, tmp_path):
    save(open_checkpoints(), 1)
    leftover = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    leftover.mkdir()
    (leftover / "half").write_text("")
    assert open_checkpoints(read_only=True).steps() == [1]
    assert leftover.exists()
    assert open_checkpoints().steps() == [1]
    assert not leftover.exists()


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
