"""Runs over mixtures and streams from the command line: evaluated, continued, stopped, resumed."""

import json
import random
from pathlib import Path

import pytest

from configs import text
from jaxformer import load
from jaxformer.config import RunConfig
from jaxformer.training.diff import compare_arrays, compare_lines, read_lines
from jaxformer.training.trials import Moment, Place, Trial
from jaxformer.training.verification import Verification, shortened
from tests.test_cli import commands, snapshot

LETTERS = {"a": "one two three ", "b": "four five six seven "}
SMALL = [
    "--config=configs/text.py",
    "--config.model.num_layers=1",
    "--config.model.num_heads=2",
    "--config.model.d_model=16",
    "--config.model.max_length=64",
    "--config.data.length=16",
    "--config.data.source=jsonl",
    "--config.data.tokenizer.kind=byte",
    "--config.data.tokenizer.vocab_size=0",
    "--config.schedule.warmup_steps=1",
    "--config.schedule.decay_steps=4",
    "--config.train.num_steps=2",
    "--config.train.batch_size=4",
]
STREAM = [
    "--config.data.streaming=true",
    "--config.data.stream.window=5",
    "--config.data.stream.validation_documents=4",
]
KINDS = {"mixture": [], "streams": STREAM}


def write(path: Path, words: str, count: int = 40) -> None:
    lines = [json.dumps({"text": f"{n}: {words * (1 + n % 4)}"}) for n in range(count)]
    path.write_text("".join(line + "\n" for line in lines))


def command(folder: Path, kind: str, *more: str) -> list[str]:
    """The command that trains a run of a kind in its own directory."""
    paths = ",".join(repr(str(folder / f"{name}.jsonl")) for name in LETTERS)
    several = [f"--config.data.mixture.paths=({paths})", "--config.data.mixture.weights=(2.0,1.0)"]
    flags = [*SMALL, *several, *KINDS[kind], f"--workdir={folder / kind}"]
    again = {flag.split("=")[0] for flag in more}  # a tuple that is given twice would be joined
    return ["train.py", *(f for f in flags if f.split("=")[0] not in again), *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with two sources and a run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    for name, words in LETTERS.items():
        write(folder / f"{name}.jsonl", words)
    for status, _, err in commands([command(folder, kind) for kind in KINDS]):
        assert status == 0, err
    return folder


def test_suites_and_prompts(trained):
    """A suite's perplexity, lengths and samples, and a prompt, as on a run over one text."""
    runs = [["eval.py", f"--workdir={trained / kind}"] for kind in KINDS]
    ask = ["--prompt=one two", "--sampler=greedy", "--max_new_tokens=5"]
    cases = [[*run, "--suite=text", "--lengths=8,32"] for run in runs]
    results = commands(cases + [[*run, *ask] for run in runs])
    assert [status for status, _, _ in results] == [0] * 4, results
    for number, kind in enumerate(KINDS):
        shown, answer = results[number][1], results[number + 2][1]
        rows = json.loads((trained / kind / "eval" / "results.json").read_text())["results"]
        [loss] = [r["value"] for r in rows if (r["split"], r["metric"]) == ("validation", "loss")]
        last = read_lines(trained / kind)[2, "eval"]
        assert loss == pytest.approx(last["loss"], rel=1e-5)  # as at the end of training
        assert {row["length"] for row in rows if row["split"] == "test"} == {8, 32}
        assert "Validation, step 2" in shown and shown.count("sample: ") == 3
        assert answer.startswith("one two")


def has_not_changed(workdir: Path, before: dict[str, bytes]) -> bool:
    """Caches of other data may have come, and the lock is empty."""
    after = snapshot(workdir)
    changed = {name for name in after if before.get(name) != after[name]}
    return before.keys() <= after.keys() and all(
        name == ".lock" or name.startswith("tokens-") for name in changed
    )


def test_a_source_that_has_changed_is_named(trained):
    """By its path and no other's, in one line, by eval.py and train.py alike."""
    source, before = trained / "b.jsonl", {kind: snapshot(trained / kind) for kind in KINDS}
    text = source.read_text()
    write(source, "eight nine ")
    more = "--config.train.num_steps=4"
    evaluated = [["eval.py", f"--workdir={trained / kind}"] for kind in KINDS]
    results = commands(evaluated + [command(trained, kind, more) for kind in KINDS])
    source.write_text(text)
    told = [f"error: {source}: is not the data that this run was trained on: it has changed, "] * 2
    told += [f"holds a run on other data: {source} has changed since, "] * 2
    for words, (status, _, err) in zip(told, results, strict=True):
        assert (status, err.count("\n"), words in err) == (2, 1, True), err
    assert all(has_not_changed(trained / kind, before[kind]) for kind in KINDS)


def test_what_may_not_change_in_a_run_over_streams(trained):
    cases = {
        "--config.data.stream.window=6": "data.stream.window was 5, now 6",
        "--config.data.mixture.weights=(1.0,1.0)": "data.mixture.weights was",
        f"--config.data.mixture.paths=('{trained}/b.jsonl','{trained}/a.jsonl')": "paths was",
    }
    before = snapshot(trained / "streams")
    more = "--config.train.num_steps=4"
    results = commands([command(trained, "streams", more, change) for change in cases])
    for words, (status, _, err) in zip(cases.values(), results, strict=True):
        assert (status, err.count("\n"), words in err) == (2, 1, True), err
    assert has_not_changed(trained / "streams", before)


def test_a_stream_that_is_told_to_stop_goes_on_exactly(tmp_path):
    """SIGTERM in the middle of an epoch, between two saves: status 75, then every bit the same."""
    write(tmp_path / "a.jsonl", LETTERS["a"])
    c = text.get_config()
    c.model.update(num_layers=1, num_heads=2, d_model=16, max_length=16)
    c.model.dropout.residual = 0.2
    c.data.update(source="jsonl", path=str(tmp_path / "a.jsonl"), length=16, streaming=True)
    c.data.stream.update(window=7, validation_documents=3)
    c.data.tokenizer.update(kind="byte", vocab_size=0)
    c.train.update(batch_size=4, num_steps=400)
    c.schedule.warmup_steps = 1
    cfg = shortened(RunConfig.from_config_dict(c), 400)
    Verification(cfg, tmp_path, seed=0, timeout=200.0)  # writes the config
    whole, cut = (Trial(n, tmp_path / "config.py", tmp_path, 200.0) for n in ("whole", "cut"))
    whole.finish(Place())
    moment = Moment("step", 20, 0.0, "SIGTERM")
    assert cut.interrupt(Place(), moment, random.Random(0))
    stopped = load(cut.workdir).step
    assert 20 <= stopped < 400 and stopped % cfg.train.checkpoint_every
    [log] = (tmp_path / "logs").glob("cut-1-*")
    assert f"SIGTERM: saved at step {stopped}, the same command resumes" in log.read_text()
    cut.finish(Place())
    assert compare_lines(whole.workdir, cut.workdir) is None
    assert compare_arrays(whole.workdir, cut.workdir) is None
    assert read_lines(whole.workdir).keys() == read_lines(cut.workdir).keys()
