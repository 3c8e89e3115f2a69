"""Seeds in one program are the runs that train.py would have made, on one device and on many."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import base
from jaxformer.checkpoint import Checkpoints
from jaxformer.data import open_data
from jaxformer.errors import UserError
from jaxformer.experiments import groups, programs, seeds
from jaxformer.experiments.axes import parse_axis
from jaxformer.experiments.cells import plan
from jaxformer.experiments.groups import check_seeds, make_groups
from jaxformer.experiments.results import folder_of
from jaxformer.experiments.seeds import train_seeds
from jaxformer.run import load
from jaxformer.training.loop import train
from tests.experiments import tiny_sweep

COPY = {"data.source": "task", "data.task.name": "copy", "data.task.max_length": 3}
COPY |= {"data.task.symbols": 4, "data.length": 8, "data.pack": False}
COPY |= {"data.tokenizer.kind": "word"}
AGREEMENT = {"data.source": "agreement", "data.length": 19, "model.max_length": 20}
AGREEMENT |= {"data.pack": False, "data.tokenizer.kind": "word", "data.agreement.num_examples": 90}
DROPOUT = {f"model.dropout.{n}": 0.2 for n in ("embedding", "attention", "residual")}
FIFTY = {"train.num_steps": 50, "train.checkpoint_every": 30, "train.eval_every": 30}
FIFTY |= {"eval.max_rows": 16, "schedule.warmup_steps": 5}


def make_jobs(folder, changes, *axes, count=2):
    """Cells of the tiny sweep, on its text unless `changes` name other data."""
    c = base.get_config()
    tiny_sweep.write_inputs(folder)
    text = {"data.path": str(folder / "text.txt")} if "data.source" not in changes else {}
    c.update_from_flattened_dict(tiny_sweep.CHANGES | text | changes)
    suite = "" if "data.source" in changes else str(folder / "suite.py")
    return plan(c.to_dict(), [parse_axis(a) for a in axes], count, suite=suite, lengths="2")


def lines(folder):
    """The numbers of metrics.jsonl by (step, split)."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {(line["step"], line["split"]): line for line in found}


def assert_same_run(found, expected, last):
    """Losses within 1e-5 wherever they are told, data the same bits at every step, checkpoints."""
    a, b = lines(found), lines(expected)
    assert a.keys() == b.keys()
    assert {(last, "train"), (last, "eval"), (30, "eval")} <= a.keys()
    for name in ("loss", "accuracy", "learning_rate", "grad_norm"):
        where = [key for key in b if name in b[key]]
        values = [[run[key][name] for key in where] for run in (a, b)]
        np.testing.assert_allclose(*values, rtol=1e-4 if name == "grad_norm" else 1e-5)
    for name in ("tokens", "skipped", "data"):
        assert [line.get(name) for line in a.values()] == [line.get(name) for line in b.values()]
    metas = [Checkpoints(folder, read_only=True).meta(last) for folder in (found, expected)]
    for name in ("config", "data", "tokenizer", "loader", "step"):
        assert metas[0][name] == metas[1][name]
    np.testing.assert_allclose(*[meta["validation_loss"] for meta in metas], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "axes", "compared"),
    [(COPY | DROPOUT, (), (0, 1)), (AGREEMENT, (), (1,)), ({}, ("data.seed=5,6",), (3,))],
    ids=["task", "agreement", "text"],
)
def test_seeds_of_one_program_are_separate_runs(tmp_path, changes, axes, compared):
    """Invariant 9. Model and data seeds are apart: with an axis of data seeds all four meet."""
    log = {"train.log_every": 1 if axes else 7}
    jobs = make_jobs(tmp_path, FIFTY | changes | log, *axes)
    [group] = make_groups(jobs, jobs, tmp_path, 0)
    assert group.jobs == tuple(jobs)
    assert train_seeds(jobs, tmp_path, group.folder) == {}
    for index in compared:
        job, alone = jobs[index], tmp_path / f"alone{index}"
        train(job.config, open_data(job.config, alone), alone)
        assert_same_run(folder_of(tmp_path, job.cell), alone, 50)
