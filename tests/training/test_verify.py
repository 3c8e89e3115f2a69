"""verify passes where runs are exact and names the first difference where they are not."""

import dataclasses
import json
import random
import shutil

import jax
import pytest

from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.training import loop, verification
from jaxformer.training.trials import Place, draw_moments
from jaxformer.training.verification import Verification, shortened
from tests.test_cli import TINY, commands
from tests.training import tiny

CFG = shortened(tiny.config(**tiny.DROPOUT), 12)


class Killed(BaseException):
    pass


class Here:
    """Stands in for a Trial: its runs are of this process, and a kill is an exception."""

    def __init__(self, name, config, out, timeout):
        self.name, self.workdir = name, out / name
        assert RunConfig.load(out / "config.json") == CFG
        assert config == out / "config.py"

    def finish(self, place):
        sizes = (1, 1) if place.devices == 1 else (place.devices // 4, 4)
        cfg = dataclasses.replace(CFG, mesh=dataclasses.replace(CFG.mesh, data=sizes[0]))
        cfg = dataclasses.replace(cfg, mesh=dataclasses.replace(cfg.mesh, fsdp=sizes[1]))
        loop.train(cfg, tiny.data(), self.workdir)
        return 1.0

    def interrupt(self, place, moment, rng):
        class Show:
            def update(self, step, metrics):
                if step == moment.step:
                    raise Killed

        try:
            loop.train(CFG, tiny.data(), self.workdir, progress=Show())
        except Killed:
            return True
        return False


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("straight") / "straight"
    loop.train(CFG, tiny.data(), workdir)
    return workdir


@pytest.fixture
def here(monkeypatch, tmp_path, straight):
    """A verification whose straight run is there already."""
    monkeypatch.setattr(verification, "Trial", Here)
    shutil.copytree(straight, tmp_path / "out" / "straight")
    return Verification(CFG, tmp_path / "out", seed=0, timeout=60.0)


def test_exact_runs_pass(here):
    results = [
        here.straight("straight", Place()),
        *here.interrupted("cut", Place(), 1, "straight"),
        here.moved("to-devices", Place(8), "straight", 1e-5),
    ]
    assert [result.difference for result in results] == [None] * len(results)
    assert [len(result.moments) for result in results[-2:]] == [1, 1]
    table = here.table(results)
    rows = [line.split("|") for line in table.splitlines()[2:]]
    chains, data = [{row[n].strip() for row in rows} for n in (6, 5)]
    assert len(data) == 1 and len(chains) == 2
    assert "| reference" in table and "equals straight: every bit" in table
    assert "equals straight: losses within 1e-05, same data" in table


def test_a_loader_that_resumes_one_batch_late_is_found(here, monkeypatch):
    right = loop._loader

    def late(cfg, data, state, mesh):
        return right(cfg, data, {"step": state["step"] + (state["step"] > 0)}, mesh)

    monkeypatch.setattr(loop, "_loader", late)
    found = here.moved("late", Place(), "straight", 0.0).difference
    assert (found.step, found.quantity) == (6, "data")  # killed at 6, resumed from 5
    assert "params/" in found.note


def test_moments_that_are_lost_are_found(here, monkeypatch):
    right = loop.Checkpoints.restore

    def forget(self, step, abstract):
        state = right(self, step, abstract)
        fresh = jax.tree.map(lambda x: x * 0, state.opt_state)
        return dataclasses.replace(state, opt_state=fresh)

    monkeypatch.setattr(loop.Checkpoints, "restore", forget)
    result = here.moved("forgetful", Place(), "straight", 0.0)
    assert (result.difference.step, result.difference.quantity) == (6, "loss (eval)")
    assert "opt_state/" in result.difference.note or "params/" in result.difference.note


def test_a_line_that_is_missing_is_found(here):
    trial = Here("other", here._config, here._out, 0.0)
    shutil.copytree(here._out / "straight", trial.workdir)
    path = trial.workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] != 7))
    found = here._result(trial, Place(), [], "straight", 0.0).difference
    assert str(found) == "step 7: the line of split train differs: present and absent"


def test_moments_are_drawn_from_everywhere_and_from_the_seed():
    drawn = draw_moments(random.Random(3), 200, 40, 5, 2.0)
    assert drawn == draw_moments(random.Random(3), 200, 40, 5, 2.0)
    assert {moment.place for moment in drawn} == {"step", "save", "start"}
    assert {moment.signal_name for moment in drawn} == {"SIGKILL", "SIGTERM"}
    assert [moment.step for moment in drawn] == sorted(moment.step for moment in drawn)
    steps = {place: [m.step for m in drawn if m.place == place] for place in ("step", "save")}
    assert (min(steps["step"]), max(steps["step"])) == (1, 39)
    assert max(steps["save"]) == 35  # the last save but one: a kill must find one to be in


def test_a_shortened_run_is_the_beginning_of_the_whole_one():
    cfg = tiny.config(train__num_steps=100, schedule__decay_steps=0, schedule__warmup_steps=20)
    whole = cfg.resolve(vocab_size=tiny.VOCAB, steps_per_epoch=5)
    short = shortened(cfg, 40).resolve(vocab_size=tiny.VOCAB, steps_per_epoch=5)
    assert short.schedule == whole.schedule
    assert short.train.num_steps == 40
    with pytest.raises(UserError, match="--steps: is 3"):
        shortened(cfg, 3)


SHORT = ["--steps=8", "--devices=1", "--processes=1"]


def test_a_config_is_verified_by_real_processes(tmp_path):
    out = tmp_path / "out"
    [(status, said, err)] = commands([["verify", *TINY, *SHORT, "--kills=1", f"--out={out}"]])
    assert status == 0, (said, err)
    assert "PASS: 0 differences in 2 runs of 8 steps, 1 signals" in said
    assert "equals straight: every bit" in said
    assert len(list((out / "interrupted-1" / "checkpoints").iterdir())) >= 2


def test_bad_input_is_status_2_and_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "full" / "file").touch()
    missing = ["--config=configs/text.py", f"--config.data.path={tmp_path / 'none'}"]
    cases = [
        ([], "--config: is missing"),
        ([*TINY, "--steps=2"], "--steps: is 2, give 4 or more"),
        ([*TINY, f"--out={tmp_path / 'full'}"], "is not empty, name a new folder"),
        ([*TINY, "--config.model.num_heads=3"], "not divisible by num_heads = 3"),
        ([*TINY, "leftover"], "leftover: is not a flag"),
        ([*TINY, "--rtol=1"], "--rtol: is 1.0, give 0 to below 1"),
        ([*missing, *SHORT, "--kills=0"], "none"),
        ([*missing, *SHORT, "--kills=0", f"--out={tmp_path / 'new'}"], "none"),
    ]
    results = commands([["verify", *arguments] for arguments, _ in cases])
    for (arguments, words), (status, out, err) in zip(cases, results, strict=True):
        assert (status, words in err, err.count("\n")) == (2, True, 1), (arguments, out, err)
    assert not list((tmp_path / "temporary").glob("jaxformer-verify-*"))
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_interrupted_on_devices_and_processes(kind, tmp_path, shared_data):
    """Packing, dropout and shuffling on; a decoder over a text, an encoder-decoder over pairs."""
    small = {"model.d_model": 32, "model.num_layers": 1, "model.d_ff": 64, "train.batch_size": 8}
    small |= {f"model.dropout.{n}": 0.1 for n in ("embedding", "attention", "residual")}
    if kind == "text":
        text = tmp_path / "text.txt"
        text.write_text("the same run, whatever happens to it\n" * 400)
        argv = ["--config=configs/shakespeare_char.py", f"--config.data.path={text}"]
    else:
        multi30k = shared_data("multi30k")
        argv = ["--config=configs/multi30k.py", "--config.data.tokenizer.kind=char"]
        argv += ["--config.data.tokenizer.vocab_size=0", "--config.data.length=128"]
        for name, file in (("path", "val.en"), ("target_path", "val.de")):
            argv.append(f"--config.data.{name}={next(multi30k.glob(file + '*'))}")
    argv += [f"--config.{name}={value}" for name, value in small.items()]
    [(status, out, err)] = commands([["verify", *argv, "--steps=16", "--kills=3"]])
    assert status == 0, (out, err)
    assert "PASS: 0 differences" in out
