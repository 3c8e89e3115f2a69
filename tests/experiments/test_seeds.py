"""Seeds in one program are the runs that train.py would have made, on one device and on many."""

import dataclasses
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer.checkpoint import Checkpoints
from jaxformer.data import open_data
from jaxformer.errors import Preempted, TrainingFailed, UserError
from jaxformer.evaluation.inputs import length_evaluators, read_inputs
from jaxformer.evaluation.lengths import evaluate_lengths
from jaxformer.experiments import estimate, groups, programs, seeds, sweep, together
from jaxformer.experiments.axes import parse_axis
from jaxformer.experiments.cells import plan
from jaxformer.experiments.groups import check_seeds, make_groups
from jaxformer.experiments.results import folder_of, read_record
from jaxformer.experiments.seeds import train_seeds
from jaxformer.experiments.sweep import run_sweep
from jaxformer.models import build, init
from jaxformer.run import Run, load
from jaxformer.training.loop import train
from jaxformer.training.metrics import TIMED
from tests.experiments import tiny_sweep

COPY = {"data.source": "task", "data.task.name": "copy_repeated", "data.task.max_length": 3}
COPY |= {"data.task.symbols": 4, "data.length": 8, "data.pack": False}
COPY |= {"data.tokenizer.kind": "word"}
AGREEMENT = {"data.source": "agreement", "data.length": 19, "model.max_length": 20}
AGREEMENT |= {"data.pack": False, "data.tokenizer.kind": "word", "data.agreement.num_examples": 90}
SIMPLE = {"data.agreement.max_modifiers": 0, "data.agreement.num_examples": 3000}
DROPOUT = {f"model.dropout.{n}": 0.2 for n in ("embedding", "attention", "residual")}
AVERAGED = {"train.ema.decay": 0.9, "eval.weights": "ema"}
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
    [
        (COPY | DROPOUT, (), (0, 1)),
        (AGREEMENT | AVERAGED, (), (1,)),
        ({}, ("data.seed=5,6",), (5,)),
    ],
    ids=["task", "agreement", "text"],
)
def test_seeds_of_one_program_are_separate_runs(tmp_path, monkeypatch, changes, axes, compared):
    """Invariant 9: the task's two seeds on one device, agreement's on two, of text eight on eight.

    Model and data seeds are apart: with an axis of data seeds all of them meet.
    """
    if "data.task.name" in changes:
        monkeypatch.setattr(programs, "seed_mesh", lambda _: None)
    log = {"train.log_every": 1 if axes else 7}
    jobs = make_jobs(tmp_path, FIFTY | changes | log, *axes, count=4 if axes else 2)
    [group] = make_groups(jobs, jobs, tmp_path, 0)
    assert group.jobs == tuple(jobs)
    assert train_seeds(jobs, tmp_path, group.folder) == {}
    for index in compared:
        job, alone = jobs[index], tmp_path / f"alone{index}"
        train(job.config, open_data(job.config, alone), alone)
        assert_same_run(folder_of(tmp_path, job.cell), alone, 50)


@pytest.mark.parametrize(("seeds", "devices"), [(1, 1), (5, 5), (6, 6), (9, 3), (16, 8), (24, 8)])
def test_seeds_are_shared_out_evenly(seeds, devices):
    mesh = programs.seed_mesh(seeds)
    assert (1 if mesh is None else mesh.size) == devices


class Killed(BaseException):
    pass


def kill(*_, **__):
    raise Killed


FOUR = COPY | {"model.position.kind": "none", "train.keep_best": 1, "train.log_every": 2}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two seeds on copying, a sweep that nothing interrupts, and its folder."""
    folder = tmp_path_factory.mktemp("two")
    jobs = make_jobs(folder, FOUR)
    run_sweep(jobs, folder / "whole")
    return jobs, folder / "whole"


def test_a_sweep_killed_three_times_ends_with_equal_results(two, tmp_path, monkeypatch, capfd):
    """In training, between the checkpoints of two cells, and between their evaluations."""
    jobs, whole = two
    for where, name, turn in (
        (seeds.Feed, "batches", 2),
        (seeds, "take", 4),
        (sweep, "write_record", 2),
    ):
        original, calls = getattr(where, name), []

        def counted(*args, original=original, calls=calls, turn=turn, **kwargs):
            calls.append(1)
            return original(*args, **kwargs) if len(calls) < turn else kill()

        with monkeypatch.context() as patch:
            patch.setattr(where, name, counted)
            with pytest.raises(Killed):
                run_sweep(jobs, tmp_path)
        assert (tmp_path / "groups").exists()
    capfd.readouterr()
    (tmp_path / "groups" / "of other axes").mkdir()
    run_sweep(jobs, tmp_path)
    err = capfd.readouterr().err
    assert "1 of 2 cells are finished already" in err
    assert "all 2 have their 4 steps" in err
    assert [folder.name for folder in (tmp_path / "groups").iterdir()] == ["of other axes"]
    assert (tmp_path / "results.csv").read_bytes() == (whole / "results.csv").read_bytes()
    for job in jobs:
        names = ("checkpoints", "metrics.jsonl", "cell.json")
        a, b = (folder_of(out, job.cell) for out in (tmp_path, whole))
        assert all((a / name).exists() for name in names)
        assert Checkpoints(a, read_only=True).steps() == [2, 4]
        one, other = lines(a), lines(b)
        for line in (*one.values(), *other.values()):
            for timed in TIMED:
                line.pop(timed, None)
        assert one == other


def test_a_cell_of_a_group_is_a_run_of_train(two, tmp_path):
    """train.py finds nothing to do in it, and its checkpoints have the validation losses."""
    jobs, whole = two
    folder = shutil.copytree(folder_of(whole, jobs[1].cell), tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    cfg = jobs[1].config
    assert train(cfg, open_data(cfg, folder), folder) == 4
    assert (folder / "metrics.jsonl").read_bytes() == before
    run, saved = load(folder), Checkpoints(folder, read_only=True)
    assert (run.step, run.config) == (4, cfg)
    losses = {
        line["step"]: line["loss"] for (_, split), line in lines(folder).items() if split == "eval"
    }
    assert {step: saved.meta(step)["validation_loss"] for step in saved.steps()} == losses


def test_a_signal_saves_the_group(two, tmp_path, capfd):
    jobs, whole = two

    class Terminating:
        def update(self, step, metrics):
            if step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path / "groups" / "a"
    with pytest.raises(Preempted, match="SIGTERM: saved at step 2"):
        train_seeds(jobs, tmp_path, folder, Terminating())
    assert Checkpoints(folder_of(tmp_path, jobs[0].cell), read_only=True).steps() == [2]
    assert train_seeds(jobs, tmp_path, folder) == {}
    assert "resuming 2 seeds from step 2" in capfd.readouterr().err
    found, expected = (lines(folder_of(out, jobs[1].cell))[4, "train"] for out in (tmp_path, whole))
    assert found["chain"] == expected["chain"]


def test_a_seed_that_fails_does_not_stop_the_others(two, tmp_path, monkeypatch):
    """Its parameters become infinite at the start; the other's results are as ever."""
    jobs, whole = two
    original = programs.make_programs

    def poisoned(*args):
        made = original(*args)

        def start(seeds):
            state = made.start(seeds)
            spoil = lambda x: x.at[0].set(np.inf) if x.ndim > 1 else x  # noqa: E731
            return dataclasses.replace(state, params=jax.tree.map(spoil, state.params))

        return dataclasses.replace(made, start=start)

    with monkeypatch.context() as patch:
        patch.setattr(seeds, "make_programs", poisoned)
        with pytest.raises(TrainingFailed, match="1 of 2 cells: seed=0"):
            run_sweep(jobs, tmp_path)
    record = read_record(tmp_path, jobs[0].cell)
    assert record is not None
    assert "step 1: the last 1 updates were not finite" in record.failed
    assert not Checkpoints(folder_of(tmp_path, jobs[0].cell), read_only=True).steps()
    good, expected = (read_record(out, jobs[1].cell) for out in (tmp_path, whole))
    assert good is not None
    assert expected is not None
    for a, b in zip(good.results, expected.results, strict=True):
        np.testing.assert_allclose(a["value"], b["value"], rtol=1e-5)
    run_sweep(jobs, tmp_path)  # it is tried again
    assert read_record(tmp_path, jobs[0].cell).failed == ""


@pytest.mark.parametrize(
    ("changes", "lengths", "shapes"), [(COPY, "1:6", 1), (AGREEMENT | SIMPLE, "0:2", 2)]
)
def test_one_program_evaluates_all_lengths_of_all_seeds(
    tmp_path, monkeypatch, changes, lengths, shapes
):
    """As eval.py does, a run and a length at a time; agreement's sentences come in two widths, and
    are without those of the seed's own training: many, where there are no modifiers."""
    jobs = make_jobs(tmp_path, changes)
    data, runs = [open_data(job.config, None) for job in jobs], []
    for job, own in zip(jobs, data, strict=True):
        graphdef, _ = nnx.split(build(job.config.model))
        params = init(job.config.model, jax.random.key(job.config.seed))
        runs.append(Run(nnx.merge(graphdef, params), own.tokenizer, job.config, 0, ""))
    suite = dataclasses.replace(jobs[0].suite, lengths=lengths, num_examples=60)
    compiled, original = [], together.over_seeds

    def counting(*args, **kwargs):
        compiled.append(original(*args, **kwargs))
        return compiled[-1]

    monkeypatch.setattr(together, "over_seeds", counting)
    found = together.evaluate_together(runs, data, suite)
    assert [program._cache_size() for program in compiled] == [shapes]
    for run, own, by_length in zip(runs, data, found, strict=True):
        examples = read_inputs(run.config, own, suite).examples  # without this seed's sentences
        evaluators = length_evaluators(run.config, own, suite)
        graphdef, params = nnx.split(run.model)
        params = nnx.to_pure_dict(params)
        alone = evaluate_lengths(evaluators, graphdef, params, examples, run.config)
        assert list(by_length) == list(alone)
        assert len(alone) > 2
        for length, totals in alone.items():
            assert by_length[length].keys() == totals.keys()
            for name, total in totals.items():
                np.testing.assert_allclose(by_length[length][name], total, rtol=1e-5)
    loss = "nll" if changes is COPY else "loss"
    assert found[0][2][loss] != found[1][2][loss]


def test_groups(tmp_path, monkeypatch):
    """By memory, by number, none where a run needs its devices or has begun by itself."""
    jobs = make_jobs(tmp_path, COPY, "model.position.kind=none,rope", count=5)

    def shapes(waiting=jobs, number=0, some=jobs):
        return [len(group.jobs) for group in make_groups(some, waiting, tmp_path, number)]

    assert shapes() == [5, 5]
    assert shapes(number=2) == [1, 2, 2] * 2
    assert shapes(number=1) == [1] * 10
    monkeypatch.setattr(groups, "free_bytes", lambda: 7 * groups.bytes_of_a_seed(jobs[0].config))
    assert shapes() == [2, 3] * 2
    first = make_groups(jobs, jobs, tmp_path, 3)[0]
    first.note()
    assert [job.cell.seed for job in first.jobs] == [0, 1]
    again = make_groups(jobs, jobs[1:], tmp_path, 5)
    assert again[0] == first
    assert [len(group.jobs) for group in again] == [2, 3, 5]
    monkeypatch.setattr(groups, "last_checkpoint", lambda out, job: 2 * (job is jobs[7]))
    assert sorted(shapes(number=5)) == [
        1,
        2,
        3,
        4,
    ]  # noted, its rest, two of the other
    data_parallel = make_jobs(tmp_path, COPY | {"mesh.fsdp": 8, "train.batch_size": 8})
    assert shapes(data_parallel, 0, data_parallel) == [1, 1]
    with pytest.raises(UserError, match=r"--seeds_per_program: is 2, but mesh\.data × fsdp"):
        check_seeds(data_parallel, 2)
    check_seeds(data_parallel, 1)


def test_the_estimate_of_memory_grows_with_what_is_held(tmp_path):
    [job] = make_jobs(tmp_path, COPY, count=1)
    small = groups.bytes_of_a_seed(job.config)
    wide = dataclasses.replace(job.config.model, d_model=64)
    batch = dataclasses.replace(job.config.train, batch_size=400)
    assert groups.bytes_of_a_seed(dataclasses.replace(job.config, model=wide)) > 4 * small
    assert groups.bytes_of_a_seed(dataclasses.replace(job.config, train=batch)) > 10 * small
    assert groups.free_bytes() > 2**20


def test_a_dry_run_measures_a_step(tmp_path):
    jobs = make_jobs(tmp_path, COPY | {"train.num_steps": 3})
    text = estimate.describe(make_groups(jobs, jobs, None, 0))
    assert text.startswith("training takes about ")
    assert "1 programs, of which the first (seeds 0, 1) compiled in" in text
    assert "ms for a step of 2 seeds" in text
    data = dataclasses.replace(jobs[0].config.data, streaming=True)
    streams = [
        dataclasses.replace(j, config=dataclasses.replace(j.config, data=data)) for j in jobs
    ]
    text = estimate.describe(make_groups(streams, streams, None, 0))
    assert text == "2 runs, one after another; the steps of a stream are not timed"
    assert [estimate.duration(s) for s in (0.2, 29, 61, 5400)] == [
        "1 s",
        "29 s",
        "1 min",
        "1 h 30 min",
    ]
