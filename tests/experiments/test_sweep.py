"""Sweeps, a cell at a time: killed anywhere they go on to the same results (test_seeds.py: groups).

Nothing finished is done again.
"""

import contextlib
import csv
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.errors import Preempted, TrainingFailed, UserError
from jaxformer.experiments import sweep
from jaxformer.experiments.cells import Cell
from jaxformer.experiments.publish import write_report
from jaxformer.experiments.results import (
    Plan,
    Record,
    read_plan,
    read_record,
    write_plan,
    write_record,
)
from tests.experiments import tiny_sweep
from tests.test_cli import ROOT, commands

run_alone = functools.partial(sweep.run_sweep, seeds_per_program=1)
AXIS = "model.position.kind=none,learned"


def rows(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def times(out):
    """When the files of each cell were last written."""
    return {
        cell.name: max(path.stat().st_mtime_ns for path in cell.rglob("*") if path.is_file())
        for cell in (out / "cells").iterdir()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep")
    tiny_sweep.write_inputs(path)
    return path


@pytest.fixture(scope="module")
def jobs(folder):
    return tiny_sweep.jobs(folder, AXIS, seeds=2, lengths="4,8,16")


@pytest.fixture(scope="module")
def whole(folder, jobs):
    """The sweep that nothing interrupts."""
    out = folder / "whole"
    assert "4 of 4 cells are finished" in run_alone(jobs, out).text
    return out


def test_results_have_a_row_for_each_cell_and_length(whole, jobs):
    found = [r for r in rows(whole) if r["split"] == "test"]
    keys = [(r["model.position.kind"], r["seed"], r["length"], r["bucket"]) for r in found]
    buckets = {"4": "id", "8": "id", "16": "ood"}
    assert keys == [
        *[("none", seed, n, buckets[n]) for seed in "01" for n in ("4", "8", "16")],
        *[("learned", seed, n, "id") for seed in "01" for n in ("4", "8")],  # 8 positions
    ]
    assert [r["config_hash"] for r in found[::3]][:2] == [job.cell.name for job in jobs][:2]
    assert {(r["step"], r["selected_by"], r["task"]) for r in found} == {("4", "last", "text")}
    assert len({r["loss"] for r in found}) == len(found)
    name = jobs[1].cell.name
    own = [r for r in rows(whole / "cells" / name / "eval") if r["metric"] == "loss"]
    mine = [r["loss"] for r in rows(whole) if r["config_hash"] == name]
    assert [r["value"] for r in own] == mine


def test_the_table_has_means_and_every_seed(whole):
    text = (whole / "table.md").read_text()
    found = [r for r in rows(whole) if r["length"] == "8"]
    of_none = [float(r["loss"]) for r in found if r["model.position.kind"] == "none"]
    low, high = sorted(of_none)
    section = text.split("## By length: loss in nats a token (mean and 95 % interval)\n")[1]
    section = section.split("##")[0]
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in section.split("\n") if line]
    assert lines[0] == ["arm", "seeds", "4", "8", "16"]
    assert lines[2][:2] == ["none", "2"]
    assert lines[2][3] == f"{(low + high) / 2:.3f} [{low:.3f}, {high:.3f}]"  # of two seeds
    assert lines[3][4] == ""
    seeds = text.split("## Every seed: loss in nats a token (one value a seed)\n")[1]
    assert all(f" {value:.3f} |" in seeds.split("##")[0] for value in of_none)


def test_a_report_needs_neither_checkpoints_nor_configs(whole, tmp_path):
    """The same files from sweep.json and the records alone."""
    for path in [whole / "sweep.json", *whole.glob("cells/*/cell.json")]:
        new = tmp_path / path.relative_to(whole)
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(path.read_bytes())
    paths = write_report(tmp_path, read_plan(tmp_path)).paths
    names = ["results.csv", "results.json", "table.md", "plot.svg", "plot.png", "index.html"]
    assert [path.name for path in paths] == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_finished_sweep_does_nothing_again(whole, jobs, capfd):
    before, table = times(whole), (whole / "results.csv").read_bytes()
    run_alone(jobs, whole)
    assert "4 of 4 cells are finished already" in capfd.readouterr().err
    assert times(whole) == before
    assert (whole / "results.csv").read_bytes() == table


@pytest.fixture
def copy(whole, tmp_path):
    """The whole sweep again, to be changed."""
    return shutil.copytree(whole, tmp_path / "copy")


class Terminating:
    """A progress display that asks for a stop at step 2, which the loop sees at its next."""

    def update(self, step, metrics):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_sweep_killed_and_started_again_ends_with_equal_results(
    copy, whole, jobs, folder, monkeypatch, capfd
):
    """SIGKILL in the second cell, SIGTERM in the third; the others are finished."""
    for job in jobs[1:3]:
        shutil.rmtree(copy / "cells" / job.cell.name)
    before = times(copy)
    command = [sys.executable, "sweep.py", *tiny_sweep.flags(folder), f"--out={copy}"]
    command += [f"--axis={AXIS}", "--seeds=2", "--lengths=4,8,16", "--seeds_per_program=1"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 3/4"):
            break
    process.kill()
    _, err = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL, err
    assert len({row["config_hash"] for row in rows(copy)}) == 2
    assert read_record(copy, jobs[1].cell) is None
    run_alone([jobs[1]], copy)
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "show_progress", lambda *_: contextlib.nullcontext(Terminating()))
        with pytest.raises(Preempted, match="SIGTERM: saved at step 3"):
            run_alone(jobs, copy)
    assert len({row["config_hash"] for row in rows(copy)}) == 3
    run_alone(jobs, copy)
    err = capfd.readouterr().err
    assert "3 of 4 cells are finished already" in err
    assert "resuming from step 3" in err
    for name in ("results.csv", "results.json", "table.md", "plot.png"):
        assert (copy / name).read_bytes() == (whole / name).read_bytes()
    after = times(copy)
    assert {name: after[name] for name in before} == before
    assert not list(copy.glob(".*partial"))


def test_a_signal_during_evaluation_ends_the_sweep_after_that_cell(copy, jobs, monkeypatch):
    def evaluate(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    original = sweep.evaluate
    monkeypatch.setattr(sweep, "evaluate", evaluate)
    for job in jobs[:2]:
        (copy / "cells" / job.cell.name / "cell.json").unlink()
    with pytest.raises(Preempted, match="SIGTERM: saved at step 4"):
        run_alone(jobs, copy)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert read_record(copy, jobs[0].cell) is not None
    assert read_record(copy, jobs[1].cell) is None


def test_a_cell_that_fails_is_reported_and_the_rest_goes_on(copy, whole, jobs, monkeypatch):
    def train(cfg, *args, **kwargs):
        if (cfg.model.position.kind, cfg.seed) == ("none", 0):
            raise TrainingFailed("step 3: the last 1 updates were not finite")
        return original(cfg, *args, **kwargs)

    original, failing = sweep.train, r"1 of 4 cells: model.position.kind=none seed=0"
    for job in jobs[:2]:
        (copy / "cells" / job.cell.name / "cell.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "train", train)
        with pytest.raises(TrainingFailed, match=failing):
            run_alone(jobs, copy)
    text = (copy / "table.md").read_text()
    assert text.startswith("3 of 4 cells are finished.\n\n## Failed\n")
    assert "step 3: the last 1 updates were not finite" in text
    assert {row["config_hash"] for row in rows(copy)} == {job.cell.name for job in jobs[1:]}
    assert "4 of 4 cells are finished" in run_alone(jobs, copy).text  # it is tried again
    assert (copy / "table.md").read_bytes() == (whole / "table.md").read_bytes()


def test_another_suite_evaluates_again_without_training(copy, whole, folder, capfd):
    [job, *_] = tiny_sweep.jobs(folder, AXIS, seeds=2, lengths="8")
    run_alone([job], copy)
    assert "is finished: it has its 4 steps" in capfd.readouterr().err
    assert {row["length"] for row in rows(copy)} == {"", "8"}
    [kept] = [r for r in rows(whole) if r["config_hash"] == job.cell.name and r["length"] == "8"]
    assert [r["loss"] for r in rows(copy) if r["length"] == "8"] == [kept["loss"]]


def test_results_are_kept_whatever_their_values_and_columns_are(tmp_path):
    """Three seeds with written results: nan, and schemes that only one arm has."""
    cells = [Cell({"a.b": arm}, seed, f"{arm}{seed}", "e") for arm in "xy" for seed in range(3)]
    plan = Plan(cells, {"seeds": "0, 1, 2"}, {})
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    for cell in cells[:5]:
        row = {"split": "test", "length": 3, "metric": "loss", "value": 1.0 + cell.seed}
        other = row | {"positions": "yarn:4", "value": float("nan")}
        found = [row | {"positions": "trained"}, other] if cell.arm["a.b"] == "y" else [row]
        write_record(tmp_path, cell, Record(9, found))
    means = write_report(tmp_path, plan).text
    assert "5 of 6 cells are finished" in means
    lines = [line.replace(" ", "") for line in means.splitlines()]
    assert "|b=x,positions=trained|3|2.000[1.000,3.000]|" in lines  # 1, 2, 3
    assert "|b=y,positions=trained|2|1.500[1.000,2.000]|" in lines
    assert "|b=y,positions=yarn:4|2|nan|" in lines
    values = [(r["positions"], r["loss"]) for r in rows(tmp_path)]
    one = [("trained", "1.0"), ("trained", "2.0"), ("trained", "3.0")]
    assert values[:5] == [*one, ("trained", "1.0"), ("yarn:4", "nan")]


def test_what_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no sweep.json"):
        read_plan(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        read_plan(tmp_path)
    cell = Cell({}, 0, "name", "e")
    (tmp_path / "cells" / "name").mkdir(parents=True)
    (tmp_path / "cells" / "name" / "cell.json").write_text("[")
    with pytest.raises(UserError, match="delete it to evaluate again"):
        read_record(tmp_path, cell)


def bad_inputs(folder: Path) -> list[tuple[list[str], str, str]]:
    """Command line, what its line starts with after `error: `, words it must contain."""
    out = f"--out={folder / 'new'}"
    (folder / "bad.csv").write_text("arm,length\nrope,4\n")
    good = ["sweep.py", *tiny_sweep.flags(folder), out]
    return [
        (["sweep.py", out], "--config", "is missing"),
        (["sweep.py", "--config=configs/base.py"], "--out", "is missing"),
        (["sweep.py", out, "--report", "--axis=model.d_model=8"], "--config", "is missing"),
        ([*good, "--report", "--dry_run"], "--report", "--dry_run"),
        ([*good, "--axis=model.num_layer=1"], "model.num_layer", "did you mean model.num_layers"),
        ([*good, "--axis=model.num_heads=2,3"], "model.d_model", "in the cell model.num_heads=3"),
        ([*good, "--suite=none"], "suite", "choose from"),
        ([*good, "--axes=model.d_model=8"], "--axes", "did you mean --axis"),
        ([*good, "--report"], f"{folder / 'new'}", "has no sweep.json"),
        ([*good, "--compare=kazemnejad2024"], "--compare", "one of kazemnejad2023"),
        ([*good, "--compare=kazemnejad2023"], "--compare", "finds no task text"),
        ([*good, "--compare=kazemnejad2023:copy_two"], "--compare", "choose from pcfg_"),
        ([*good, f"--compare={folder / 'text.txt'}"], "--compare", "finds no file"),
        ([*good, f"--compare={folder / 'bad.csv'}"], f"{folder / 'bad.csv'}", "no column mean"),
        ([*good, "--select=best"], "--select", "choose from last, id_validation, ood"),
        ([*good, "--select=ood"], "--select", "--allow_ood_selection"),
        ([*good, "--select=id_validation"], "train.keep_best", "is 0 while"),
        (["sweep.py", out, "--report", "--select=id_validation"], "--select", "with --report"),
        (["sweep.py", out, "--report", "--lengths=1:4"], "--lengths", "with --report"),
        ([*good[:-1], f"--out={folder / 'text.txt'}"], "out", "cannot be written"),
    ]


def test_commands(whole, folder):
    """Bad input is one line, status 2, before anything is written; --report and --dry_run."""
    table = (whole / "results.csv").read_bytes()
    for name in ("results.csv", "table.md", "index.html"):
        (whole / name).unlink()
    cases = bad_inputs(folder)
    axes = ["--axis=model.position.kind=none,rope", "--axis=model.d_model=8,16", "--seeds=2"]
    dry = ["sweep.py", *tiny_sweep.flags(folder), *axes, "--dry_run"]
    good = [dry, ["sweep.py", f"--out={whole}", "--report"], ["sweep.py", "--help"]]
    results = commands([*(case[0] for case in cases), *good])
    wrong = []
    for (argv, where, words), (status, _, err) in zip(cases, results, strict=False):
        one = err.count("\n") == 1 and err.startswith(f"error: {where}")
        if not (status == 2 and one and words in err):
            wrong.append((argv[-2:], where, words, status, err[-600:]))
    assert not wrong, "\n".join(map(str, wrong))
    assert not (folder / "new").exists()
    assert [status for status, _, _ in results[-3:]] == [0, 0, 0], results[-3:]
    shown, report, usage = (out for _, out, _ in results[-3:])
    assert shown.startswith("8 cells\n")
    assert "|rope|16|1|" in shown.replace(" ", "")
    assert "|test,beyondtraining|" not in shown.replace(" ", "")  # lengths 4 and 8 of 8
    assert "|test|8|thequi|" in shown.replace(" ", "")
    assert "4 of 4 cells are finished" in report
    assert (whole / "results.csv").read_bytes() == table
    assert (whole / "table.md").exists()
    assert (whole / "index.html").exists()
    assert "usage: python sweep.py" in usage
