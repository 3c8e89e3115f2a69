"""diff names the first step and quantity that differ, and the first tensor; its exit status."""

import json
import shutil

import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError
from jaxformer.training.diff import compare_arrays, compare_lines
from jaxformer.training.loop import train
from tests.test_cli import commands
from tests.training import tiny

CHANGES = {"train__num_steps": 6, "train__eval_every": 3, "train__checkpoint_every": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("diff") / "run"
    train(tiny.config(**CHANGES), tiny.data(), workdir)
    return workdir


def changed(run, tmp_path, change):
    """A copy of the run whose lines of metrics went through `change`; None drops a line."""
    other = tmp_path / "other"
    shutil.copytree(run, other)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in map(change, lines) if line is not None]
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


def setting(name, step, split="train"):
    """A change of one quantity from a step on."""

    def change(line):
        if line["step"] < step or line["split"] != split:
            return line
        value = line[name]
        return line | {name: value * 1.000001 if isinstance(value, float) else "other"}

    return change


@pytest.mark.parametrize(
    ("name", "step", "split", "words"),
    [
        ("data", 4, "train", "step 4: data differs: "),
        ("loss", 4, "train", "step 4: loss differs: "),
        ("grad_norm", 2, "train", "step 2: grad_norm differs: "),
        ("learning_rate", 6, "train", "step 6: learning_rate differs"),
        ("parameters", 3, "eval", "step 3: parameters (eval) differs: "),
        ("chain", 4, "train", "(of one of the steps 3 to 4)"),
    ],
)
def test_the_first_difference_is_named(run, tmp_path, name, step, split, words):
    other = changed(run, tmp_path, setting(name, step, split))
    assert words in str(compare_lines(run, other))
    with_tolerance = compare_lines(run, other, rtol=1e-5)
    assert (with_tolerance is None) == (name != "data")


def test_the_data_are_named_first(run, tmp_path):
    def change(line):
        both = {"data": "other", "loss": 0.0, "chain": "other"}
        return line | both if line["split"] == "train" and line["step"] == 4 else line

    assert compare_lines(run, changed(run, tmp_path, change)).quantity == "data"


def test_times_are_no_difference_and_a_torn_line_is_none(run, tmp_path):
    other = changed(run, tmp_path, lambda line: line | {"time": 0.0, "seconds": {}, "goodput": 0})
    with open(other / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "spl')
    assert compare_lines(run, other) is None
    assert compare_arrays(run, other) is None


def test_another_rate_shows_before_it_acts(run, tmp_path):
    other = tmp_path / "other"
    train(tiny.config(**CHANGES, schedule__peak_value=1e-3), tiny.data(), other)
    found = compare_lines(run, other)
    assert (found.step, found.quantity) == (2, "loss")  # the line of step 1 is not written
    assert compare_arrays(run, other).step == 6


def test_the_first_tensor_is_named(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    shutil.rmtree(other / "checkpoints")
    program = tiny.program(tiny.config(**CHANGES))
    source, target = Checkpoints(run, read_only=True), Checkpoints(other)
    state = source.restore(6, program.abstract)
    table = np.array(state.params["embedding"]["table"])
    before = float(table[2, 3])
    table[2, 3] = np.nextafter(table[2, 3], np.float32(9))
    state.params["embedding"]["table"] = table
    target.save(6, state, source.meta(6))
    target.wait()
    source.close(), target.close()
    found = compare_arrays(run, other)
    assert found.quantity == "params/embedding/table[2, 3]"
    assert found.values == (before, float(table[2, 3]))
    assert found.note == "first of 1 arrays that differ"


def test_runs_of_nothing_in_common_are_refused(run, tmp_path):
    other = changed(run, tmp_path, lambda line: line | {"step": line["step"] + 100})
    with pytest.raises(UserError, match="have no step in common"):
        compare_lines(run, other)


def test_exit_status_and_what_is_printed(run, tmp_path):
    short = changed(run, tmp_path, lambda line: line if line["step"] < 5 else None)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "metrics.jsonl").write_text("no json\n")
    (tmp_path / "no number").mkdir()
    (tmp_path / "no number" / "metrics.jsonl").write_text('{"step": "a", "split": "train"}\n')
    (tmp_path / "killed early").mkdir()
    (tmp_path / "killed early" / "metrics.jsonl").write_text('{"step": 1, "split": "eval"}\n')
    different = tmp_path / "different"
    shutil.copytree(run, different)
    text = (run / "metrics.jsonl").read_text()
    (different / "metrics.jsonl").write_text(text.replace('"grad_norm": ', '"grad_norm": 1'))
    cases = [
        ([run, run], 0, "equal: 6 steps, chain "),
        ([run, different], 1, "step 2: grad_norm differs: "),
        ([run, short], 1, "no difference up to step 4, where "),
        ([run, short, "--rtol=1e-3"], 1, "no difference up to step 4"),
        ([run], 2, "error: arguments: are 1, not 2"),
        ([run, tmp_path / "none"], 2, "metrics.jsonl: cannot be read (No such file"),
        ([run, tmp_path / "bad"], 2, "line 1 is not a line of a run's metrics"),
        ([run, run, "--rtol=-1"], 2, "error: --rtol: is -1.0, give 0 to below 1"),
        ([run, run, "--rtol=nan"], 2, "error: --rtol: is nan, give 0 to below 1"),
        ([run, tmp_path / "no number"], 2, "line 1 is not a line of a run's metrics"),
        ([tmp_path / "killed early", tmp_path / "killed early"], 0, "equal: 0 steps"),
        ([run, run, "--tolerance=1"], 2, "error: --tolerance: is not a flag"),
        (["--help"], 0, "usage: python -m jaxformer.training.diff"),
    ]
    results = commands([["diff", *map(str, arguments)] for arguments, _, _ in cases])
    for (arguments, status, words), (found, out, err) in zip(cases, results, strict=True):
        assert (found, words in out + err) == (status, True), (arguments, out, err)
        assert status != 2 or err.count("\n") == 1
