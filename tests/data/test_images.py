"""Images from a file: split, classes, scale, the fingerprint of what was read, a run of them."""

import sys

import numpy as np
import pytest

from jaxformer.data import open_data, resolve
from jaxformer.data.blank import blank_row
from jaxformer.data.images import open_images
from jaxformer.errors import UserError
from jaxformer.training.loop import train
from tests.models.test_patches import config
from tests.training.test_loop import At, Killed, kill, lines

FAST = {"train.num_epochs": 0.0, "train.num_steps": 6, "train.batch_size": 8}
FAST |= {"train.log_every": 1, "train.checkpoint_every": 2, "train.eval_every": 3}
FAST |= {"eval.batch_size": 8, "schedule.warmup_steps": 2}


def write(path, count=20, seed=0, **changes):
    rng = np.random.default_rng(seed)
    arrays = {
        "images": rng.integers(0, 256, (count, 4, 4, 2), dtype=np.uint8),
        "labels": np.arange(count) % 3 * 5,
    }
    np.savez(path, **arrays | changes)
    return str(path)


def test_rows_of_a_file(tmp_path):
    """Classes are in order of their value, bytes become -1 … 1, every image is in one split."""
    path = write(tmp_path / "a.npz")
    cfg = config(**{"data.path": path, "data.validation_fraction": 0.25})
    classes, rows, held_out = open_images(cfg)
    assert (classes, len(rows), len(held_out)) == (("0", "5", "10"), 15, 5)
    with np.load(path) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    found = [part.row(0, i) for part in (rows, held_out) for i in range(len(part))]
    pixels = images / 127.5 - 1
    where = [int(np.abs(pixels - r["tokens"]).sum((1, 2, 3)).argmin()) for r in found]
    assert sorted(where) == list(range(20))
    assert [classes[r["targets"]] for r in found] == [str(labels[i]) for i in where]
    assert {k: (v.shape, v.dtype) for k, v in found[0].items()} == {
        k: (v.shape, v.dtype) for k, v in blank_row(cfg).items()
    }
    again = open_images(cfg)[1].fingerprint
    write(tmp_path / "a.npz", seed=1)
    changed = open_images(cfg)[1].fingerprint
    split = config(**{"data.path": path, "data.validation_fraction": 0.25, "data.split_seed": 1})
    assert rows.fingerprint == again != changed != open_images(split)[1].fingerprint


def test_a_killed_run_on_images_goes_on_in_every_bit(tmp_path):
    path = write(tmp_path / "a.npz")
    cfg = config(**{"data.path": path, "model.head.num_classes": 0} | FAST)
    for name in ("whole", "killed"):
        workdir = tmp_path / name
        data = open_data(cfg, workdir)
        resolved = resolve(cfg, data)
        assert (resolved.model.head.num_classes, resolved.model.vocab_size) == (3, 0)
        if name == "killed":
            with pytest.raises(Killed):
                train(resolved, data, workdir, progress=At(5, kill))
        train(resolved, data, workdir)
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert "macro_f1" in lines(tmp_path / "whole")[-1]
    write(tmp_path / "a.npz", seed=1)
    data = open_data(cfg, tmp_path / "whole")
    with pytest.raises(UserError, match=r"holds a run on other data: .*a.npz has changed since"):
        train(resolve(cfg, data), data, tmp_path / "whole")


def test_what_is_no_file_of_images_is_refused_in_a_line(tmp_path, monkeypatch):
    path, labels = tmp_path / "a.npz", np.arange(20) % 3
    write(path)
    for arrays, what in (
        ({"images": np.zeros((20, 4, 4))}, r"holds images of 4 x 4 x 1, the model takes 4 x 4 x 2"),
        ({"labels": labels[:3]}, r"has images \(20, 4, 4, 2\) and labels \(3,\)"),
        ({"images": np.full((20, 4, 4, 2), np.inf)}, r"holds numbers that are not finite"),
        ({"labels": labels * 0}, r"has 1 class"),
        ({"labels": np.array([None] * 20)}, r"cannot be read \(.*allow_pickle"),
    ):
        write(path, **arrays)
        with pytest.raises(UserError, match=what):
            open_images(config(**{"data.path": str(path)}))
    path.write_text("text")
    with pytest.raises(UserError, match=r"cannot be read"):
        open_images(config(**{"data.path": str(path)}))
    with pytest.raises(UserError, match=r"nowhere: is not a file, name a FILE.npz, or digits"):
        open_images(config(**{"data.path": "nowhere"}))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r"digits: needs scikit-learn, install the extra 'oracle'"):
        open_images(config())


def test_the_digits_of_scikit_learn():
    pytest.importorskip("sklearn")
    small = {"model.patches.image_size": 8, "model.patches.channels": 1, "data.length": 17}
    classes, rows, held_out = open_images(config(**small | {"model.max_length": 17}))
    assert classes == tuple("0123456789")
    assert len(rows) + len(held_out) == 1797
    values = np.stack([rows.row(0, i)["tokens"] for i in range(50)])
    assert (values.min(), values.max()) == (-1, 1)
