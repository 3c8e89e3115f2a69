"""The command line: bad input gives one line and status 2 and changes nothing."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.command import guard
from jaxformer.errors import Preempted, TrainingFailed, UserError

ROOT = Path(__file__).resolve().parent.parent
TINY = [
    "--config=configs/agreement.py",
    "--config.data.agreement.num_examples=64",
    "--config.model.d_model=16",
    "--config.model.num_layers=1",
    "--config.schedule.warmup_steps=1",
    "--config.train.num_steps=2",
    "--config.train.batch_size=8",
]

PAIRS = [
    "--config=configs/multi30k.py",
    "--config.model.d_model=16",
    "--config.model.num_layers=1",
    "--config.model.d_ff=16",
    "--config.model.max_length=16",
    "--config.model.position.kind=learned",
    "--config.data.length=16",
    "--config.data.tokenizer.kind=word",
    "--config.data.tokenizer.vocab_size=0",
    "--config.schedule.warmup_steps=1",
    "--config.train.num_steps=2",
    "--config.train.batch_size=4",
]


def commands(cases: list[list[str]]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of command lines, run in the repository's root."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli_cases"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    return [tuple(result) for result in json.loads(done.stdout)]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained tiny run and some files, good and bad."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "empty.txt").touch()
    (folder / "binary.txt").write_bytes(b"\x00\xff\xfe" * 100)
    (folder / "short.txt").write_text("too short")
    (folder / "long.txt").write_text("some words in a line\n" * 200)
    (folder / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (folder / "broken.py").write_text("raise RuntimeError('no config')")
    (folder / "file").write_text("a file")
    (folder / "boys.txt").write_text("the boys near the dog see the old girl\n" * 3)
    lines = [{"prompt": "the boys", "id": "x", "reference": "see the dog"}, {"prompt": ""}]
    (folder / "asked.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    pair = {"sentence_good": "the boys see", "sentence_bad": "the boys sees"}
    (folder / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 3)
    (folder / "a.en").write_text("a dog runs\na man sees a dog\ntwo dogs\n" * 5)
    (folder / "a.de").write_text("ein hund\nein mann sieht ihn\nzwei hunde\n" * 5)
    pairs = [
        f"--config.data.path={folder / 'a.en'}",
        f"--config.data.target_path={folder / 'a.de'}",
    ]
    results = commands(
        [
            ["train.py", *TINY, f"--workdir={folder / 'run'}"],
            ["train.py", *PAIRS, *pairs, f"--workdir={folder / 'pairs'}"],
        ]
    )
    for status, out, err in results:
        assert status == 0, err
        assert "trained to step 2" in out
    return folder


def text(folder: Path, name: str, *more: str) -> list[str]:
    return [
        "train.py",
        "--config=configs/shakespeare_char.py",
        f"--config.data.path={folder / name}",
        f"--workdir={folder / 'new'}",
        *more,
    ]


def bad_inputs(f: Path) -> list[tuple[list[str], str, str]]:
    """Command line, what its line starts with after `error: `, words it must contain."""
    new, run = [f"--workdir={f / 'new'}"], [f"--workdir={f / 'run'}"]
    train, evaluate = ["train.py", *TINY, *new], ["eval.py", *run]
    return [
        (["train.py"], "--config", "is missing"),
        (["train.py", *TINY], "--workdir", "is missing"),
        (["train.py", *TINY, "--dry_run", "--coordinator=h:80"], "--coordinator", "--dry_run"),
        (["train.py", *TINY, "--dry_run", "--num_processes=2"], "--num_processes", "leave it out"),
        (["train.py", *TINY, "--dry_run", "--process_id=0"], "--process_id", "leave it out"),
        (["train.py", "--config=configs/none.py", *new], "configs/none.py", "is not a file"),
        (["train.py", f"--config={f / 'broken.py'}", *new], f"{f / 'broken.py'}", "no config"),
        (["train.py", "--config=configs/agreement.py:x", *new], "configs/agreement.py:x", "argum"),
        (
            [*train, "--config.model.num_layers=four"],
            "model.num_layers",
            "a whole number",
        ),
        ([*train, "--config.model.num_layers=1.5"], "model.num_layers", "whole number"),
        ([*train, "--config.model.tie_embeddings=2"], "model.tie_embeddings", "true or false"),
        (
            [*train, "--config.model.num_layer=4"],
            "model.num_layer",
            "did you mean model.num_layers",
        ),
        ([*train, "--config.modle.num_layers=4"], "modle", "did you mean model"),
        ([*train, "--config.model.position.rope.bse=1"], "model.position.rope.bse", "rope.base"),
        ([*train, "--config.model.position.kind=roap"], "model.position.kind", "did you mean rope"),
        ([*train, "--config.model.num_heads=3"], "model.d_model", "not divisible by num_heads = 3"),
        ([*train, "--config.schedule.peak_value=nan"], "schedule.peak_value", "finite"),
        ([*train, "--config.data.path=x"], "data.path", "never read"),
        ([*train, "--config.model.vocab_size=50"], "model.vocab_size", "too small"),
        ([*train, "--config.mesh.data=3"], "mesh", "1 devices"),
        ([*train, "--config.data.length=10"], "data.length", "max_modifiers"),
        ([*train, "leftover"], "leftover", "is not a flag"),
        ([*train, "--flagfile=none"], "--flagfile", "none"),
        ([*train, "--wrokdir=x"], "--wrokdir", "did you mean --workdir"),
        (text(f, "none.txt"), f"{f / 'none.txt'}", ""),
        (text(f, "empty.txt"), f"{f / 'empty.txt'}", "empty"),
        (text(f, "binary.txt"), f"{f / 'binary.txt'}", "UTF-8"),
        (text(f, "short.txt"), f"{f / 'short.txt'}", "tokens"),
        (text(f, "broken.jsonl", "--config.data.source=jsonl"), f"{f / 'broken.jsonl'}", "line 2"),
        (["train.py", *TINY, f"--workdir={f / 'file'}"], "workdir", "cannot be written"),
        (["train.py", *TINY, *run, "--config.model.d_model=32"], "workdir", "model.d_model was 16"),
        (["eval.py"], "--workdir", "is missing"),
        (["eval.py", f"--workdir={f / 'none'}"], "workdir", "config.json"),
        ([*evaluate, "--step=7"], f"{f / 'run' / 'checkpoints'}", "no checkpoint of step 7"),
        ([*evaluate, "--suite=none"], "suite", "choose from"),
        ([*evaluate, "--lengths=5:1"], "lengths", "5:1"),
        ([*evaluate, "--lengths=40"], "model.max_length", "64"),
        ([*evaluate, "--positions=yarm:4"], "positions", "did you mean yarn"),
        ([*evaluate, "--positions=trained,yarn:4"], "positions", "are learned"),
        ([*evaluate, "--prompt=the", "--positions=window:4,trained"], "positions", "2 schemes"),
        ([*evaluate, "--prompt=the zebra"], "--prompt", "zebra"),
        ([*evaluate, "--prompt=" + "the " * 70], "model.max_length", "64"),
        (["eval.py", f"--workdir={f / 'pairs'}", "--prompt=a cat"], "--prompt", "'cat'"),
        (["eval.py", f"--workdir={f / 'pairs'}", "--prompt=" + "a " * 16], "--prompt", "17 tokens"),
        ([*evaluate, "--mesh=fsdp:3"], "mesh.fsdp", "3 does not divide the 1 devices"),
        ([*evaluate, "--mesh=heads:2"], "--mesh", "write AXIS:SIZE"),
        ([*train, "--config.mesh.expert=2"], "mesh.expert", "no layer has experts"),
        ([*train, "--config.mesh.tensor=3"], "mesh.tensor", "model.num_heads = "),
        ([*evaluate, "--prompt=the", "--sampler=top_z:1"], "sampler", "choose from"),
        ([*evaluate, "--prompt=the", "--sampler=top_p:2"], "sampler.p", "2"),
        ([*evaluate, "--prompt=the", "--repetition_penalty=0"], "repetition_penalty", "is 0.0"),
        ([*evaluate, "--prompt=the", "--prompt=a", "--stream"], "--stream", "2 prompts"),
        ([*evaluate, "--dtype=int8"], "dtype", "float32, bfloat16"),
        ([*evaluate, "--window=4"], "--window", "is not read by --suite"),
        ([*evaluate, "--prompts="], "--prompts", "is empty"),
        (["eval.py", "--workdir=hf:"], "--workdir", "name a folder behind it"),
        ([*evaluate, "--prompt=the", "--lengths=4"], "--lengths", "is not read by --prompt"),
        ([*evaluate, "--repetition_penalty=2"], "--repetition_penalty", "--prompt, --prompts"),
        ([*evaluate, "--prompt=the", "--pairs=x"], "--pairs", "is given with --prompt"),
        ([*evaluate, f"--pairs={f / 'none.jsonl'}"], f"{f / 'none.jsonl'}", "cannot be read"),
        ([*evaluate, f"--pairs={f / 'pairs.jsonl'}", "--positions=yarn:2"], "positions", "learned"),
        ([*evaluate, f"--pairs={f / 'broken.jsonl'}"], f"{f / 'broken.jsonl'} line 1", "sentence_"),
        (
            ["eval.py", f"--workdir={f / 'pairs'}", f"--pairs={f / 'pairs.jsonl'}"],
            "model.architecture",
            "is encoder_decoder",
        ),
        ([*evaluate, f"--perplexity={f / 'empty.txt'}"], f"{f / 'empty.txt'}", "is empty"),
        ([*evaluate, f"--perplexity={f / 'binary.txt'}"], f"{f / 'binary.txt'}", "binary"),
        ([*evaluate, f"--perplexity={f / 'long.txt'}"], f"{f / 'long.txt'}", "'some'"),
        ([*evaluate, f"--perplexity={f / 'boys.txt'}", "--window=65"], "--window", "64"),
        ([*evaluate, f"--perplexity={f / 'boys.txt'}", "--window=0"], "window", "0"),
        (
            [*evaluate, f"--perplexity={f / 'boys.txt'}", "--window=8", "--stride=9"],
            "--stride",
            "above the window",
        ),
        (
            [*evaluate, f"--prompts={f / 'broken.jsonl'}"],
            f"{f / 'broken.jsonl'} line 1",
            "'prompt'",
        ),
        ([*evaluate, f"--prompts={f / 'empty.txt'}"], f"{f / 'empty.txt'}", "is empty"),
        ([*evaluate, f"--scores={f / 'asked.jsonl'}"], f"{f / 'asked.jsonl'} line 1", "'continu"),
        (
            [*evaluate, f"--prompts={f / 'asked.jsonl'}", f"--out={f / 'file'}"],
            f"{f / 'file'}",
            "cannot be written",
        ),
    ]


def test_bad_inputs_give_one_line_and_change_nothing(run):
    cases = bad_inputs(run)
    before = snapshot(run)
    wrong = []
    for (argv, where, words), (status, _, err) in zip(
        cases, commands([case[0] for case in cases]), strict=True
    ):
        lines = err.splitlines()
        fine = status == 2 and len(lines) == 1 and lines[0].startswith(f"error: {where}")
        if not (fine and words in err):
            wrong.append((argv[1:], where, words, status, err[-600:]))
    assert not wrong, "\n".join(map(str, wrong))
    after = snapshot(run)
    changed = {name for name in after if before.get(name) != after[name]}
    assert not {name for name in changed if name.startswith("run/") and ".lock" not in name}
    assert not before.keys() - after.keys()


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UserError("seed", "is -1", "give more"), 2, "error: seed: is -1, give more\n"),
        (Preempted(7, "SIGTERM"), 75, "SIGTERM: saved at step 7, the same command resumes\n"),
        (TrainingFailed("step 3"), 1, "failed: step 3\n"),
        (KeyboardInterrupt(), 1, ""),
    ],
    ids=["bad input", "preempted", "failed", "interrupted"],
)
def test_how_a_run_ends_is_its_exit_status(error, status, words, capsys):
    def main():
        raise error

    assert guard(main, debug=False) == status
    assert capsys.readouterr().err == words


def test_a_workdir_in_use_is_refused(run):
    with open(run / "run" / ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        more = "--config.train.num_steps=3"
        [(status, _, err)] = commands([["train.py", *TINY, f"--workdir={run / 'run'}", more]])
    assert status == 2
    assert err.count("\n") == 1
    assert f"in use by process {os.getpid()}" in err


def test_a_workdir_in_use_by_a_run_that_only_starts_is_left_alone(run):
    """No config.json yet: the second start must not bind the first to its tokenizer."""
    (run / "starting").mkdir()
    with open(run / "starting" / ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        [(status, _, err)] = commands([["train.py", *TINY, f"--workdir={run / 'starting'}"]])
    assert status == 2
    assert "in use by process" in err
    assert [path.name for path in (run / "starting").iterdir()] == [".lock"]


def test_good_commands(run):
    workdir = f"--workdir={run / 'run'}"
    dry = ["train.py", *TINY, "--dry_run"]
    evaluate = ["eval.py", workdir, "--lengths=0:2", f"--out={run / 'out'}"]
    evaluate += ["--positions=trained,window:4"]
    prompt = ["eval.py", workdir, "--prompt=the boys", "--sampler=greedy", "--max_new_tokens=3"]
    prompt += ["--positions=window:4"]
    ask = ["eval.py", f"--workdir={run / 'pairs'}", "--prompt=a dog", "--prompt=two dogs"]
    asks = [ask, [*ask, "--sampler=greedy"], [*ask, "--sampler=temperature:9"]]
    cases = [dry, ["train.py", *TINY, workdir], evaluate, prompt, ["eval.py", "--help"], *asks]
    results = commands(cases)
    assert [status for status, _, _ in results] == [0] * 8, results
    shown, again, table, text, usage, *answers = (out for _, out, _ in results)
    for words in ("vocabulary: 79", "sample row", "parameters", "total"):
        assert words in shown
    assert "trained to step 2" in again
    assert "By number of modifiers: agreement %" in table
    assert "window:4" in table
    assert (run / "out" / "table.md").exists()
    assert text.startswith("the boys ")
    assert len(text.split()) <= 5
    assert "usage: python eval.py" in usage
    # A run of pairs takes the prompts for sources and prints the targets alone.
    assert answers[0] == answers[1] != answers[2]
    known = "a dog runs man sees two dogs ein hund mann sieht ihn zwei hunde"
    for answer in answers:
        assert answer.count("---") == 1
        assert {*answer.split()} <= {*known.split(), "---"}
        assert not answer.startswith("a dog\n")


def test_other_things_to_do_with_a_run(run):
    """Prompts and scores of a file, minimal pairs, perplexity, a stream, half precision."""
    out, new = run / "modes", ["--max_new_tokens=5"]
    evaluate = ["eval.py", f"--workdir={run / 'run'}"]
    prompts = [*evaluate, f"--prompts={run / 'asked.jsonl'}", f"--out={out}", *new]
    sources = {"source": "a dog", "reference": "ein hund", "target": "zwei hunde"}
    (run / "sources.jsonl").write_text(f"{json.dumps(sources)}\n" * 2)
    translate = ["eval.py", f"--workdir={run / 'pairs'}", f"--out={run / 'translated'}"]
    scored = {"prompt": "the boys", "continuation": "see the dog"}
    (run / "scored.jsonl").write_text(f"{json.dumps(scored)}\n")
    prompt = [*evaluate, "--prompt=the boys", "--sampler=temperature:2", *new]
    cases = [
        prompts,
        [*prompts, "--batch_size=1"],
        [*translate, f"--prompts={run / 'sources.jsonl'}"],
        [*evaluate, f"--scores={run / 'scored.jsonl'}", f"--out={out}"],
        [*translate, f"--scores={run / 'sources.jsonl'}"],
        [*evaluate, f"--pairs={run}/pairs.jsonl", f"--out={out}", "--positions=trained,window:2"],
        [*evaluate, f"--perplexity={run / 'boys.txt'}", "--window=8", "--stride=3", f"--out={out}"],
        prompt,
        [*prompt, "--stream"],
        [*evaluate, "--prompt=the boys", "--sampler=greedy", "--dtype=bfloat16", *new],
    ]
    results = commands(cases)
    assert [status for status, _, _ in results] == [0] * len(cases), results
    shown = [text for _, text, _ in results]

    def lines(name, folder=out):
        return [json.loads(line) for line in (folder / name).read_text().splitlines()]

    first, second = lines("generated.jsonl")
    assert (first["id"], first["reference"], second["id"]) == ("x", "see the dog", 2)
    assert first["num_tokens"] <= 5
    assert "generated.partial.jsonl" not in {path.name for path in out.iterdir()}
    assert "sacreBLEU chrF: nrefs:1" in shown[0]
    assert "tokens per second" in shown[0]
    assert "BLEU" in shown[2]
    assert {line["source"] for line in lines("generated.jsonl", run / "translated")} == {"a dog"}
    (score,) = lines("scores.jsonl")
    assert score["num_tokens"] == 3
    assert score["logprob"] < 0
    assert lines("scores.jsonl", run / "translated")[0]["num_tokens"] == 3  # and the end token
    told = json.loads((out / "pairs.json").read_text())
    assert [(row["positions"], row["weight"]) for row in told["results"]] == [
        ("trained", 3),
        ("window:2", 3),
    ]
    assert told["start"] == "<s>"
    assert (out / "pairs.csv").read_text().startswith("positions,file,metric,value,low,high,weight")
    told = json.loads((out / "perplexity.json").read_text())
    assert (told["window"], told["stride"], told["step"]) == (8, 3, 2)
    values = {row["metric"]: row for row in told["results"]}
    assert values["loss"]["weight"] == 27
    assert values["word_perplexity"]["value"] == pytest.approx(values["perplexity"]["value"])
    assert "windows of 8, stride 3" in shown[6]
    assert shown[7] == shown[8]
    assert shown[9].startswith("the boys")
