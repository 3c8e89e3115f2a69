"""Bad configs by the hundred and damaged run folders file by file: a line each, never a traceback.

A config either makes a run or is refused by one line. A damaged folder either goes on to the end of
the very same run or is refused by one line, and then nothing in it has changed.
"""

import collections
import contextlib
import copy
import dataclasses
import io
import json
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from flax import nnx

from configs import agreement, base, masked_lm, multi30k, shakespeare_char
from jaxformer import load
from jaxformer.checkpoint import Checkpoints
from jaxformer.command import BAD_INPUT, OK, guard
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.data.loader import evaluation_batches
from jaxformer.evaluation.evaluators import EVALUATORS, evaluate_batches
from jaxformer.evaluation.report import read_metrics
from jaxformer.models import abstract_params, build
from jaxformer.training.loop import train
from jaxformer.training.metrics import TIMED
from jaxformer.training.optim import make_optimizer
from jaxformer.training.workdir import locked
from tests.training import tiny


def guarded(main) -> tuple[int, str]:
    """How the command line would end: status and stderr; what it does not catch is raised."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        status = guard(main, debug=False)
    return status, err.getvalue()


# --- configs ---------------------------------------------------------------------------------

STARTS = (base, agreement, shakespeare_char, masked_lm, multi30k)
ODD = [None, True, "", " ", "nan", "x" * 300, "ünï\n\x00", "../..", -1, 0, 1, 2, 3, 7, 2**31, 2**70]
ODD += [-(10**9), 0.5, -0.5, 1.0, 1e-300, 1e300, float("nan"), float("inf"), b"bytes", object()]
ODD += [(), (1,), ("",), ["a"], {}, {"a": 1}, {1: 2}, {"kind": "rope"}, lambda: 0, 3 + 4j]
STRINGS = ["none, rope x2", "rope:window=3", "rope:window=-1 x3", "x2", "rope:base", ",", "a:b:C"]
STRINGS += ["json:loads", "tests.nowhere:Class", "learnde", "0", "*", "../shared", "a,b,,c"]


def leaves(section: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all fields, sections too."""
    paths = []
    for name, value in section.items():
        paths.append((*prefix, name))
        if isinstance(value, dict):
            paths += leaves(value, (*prefix, name))
    return paths


def choices(cls: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[Any]]:
    """The literal values that fields of a section take, and both of a bool."""
    found = {}
    for name, kind in get_type_hints(cls).items():
        if hasattr(kind, "from_config_dict"):
            found |= choices(kind, (*prefix, name))
        elif kind is bool or str(get_origin(kind)) == "typing.Literal":
            found[(*prefix, name)] = [True, False] if kind is bool else list(get_args(kind))
    return found


def plain(section: Any) -> Any:
    return {n: plain(v) for n, v in section.items()} if hasattr(section, "items") else section


def start(module: Any) -> dict[str, Any]:
    """A small config that makes a run."""
    values = plain(module.get_config())
    values["model"] |= {"d_model": 16, "num_heads": 2}
    values["data"]["path"] = "text" if values["data"]["source"] == "text" else ""
    values["data"]["target_path"] = "text" if values["objective"]["kind"] == "seq2seq" else ""
    return values


def spoil(rng: random.Random, values: dict[str, Any], known: dict[tuple[str, ...], list]) -> str:
    """Changes one thing in place and tells what."""
    paths = leaves(values)
    kind = rng.choice(("odd", "odd", "number", "string", "choice", "choice", "unknown", "missing"))
    path = rng.choice(sorted(known) if kind == "choice" else paths)
    section = values
    for name in path[:-1]:
        section = section.get(name) if isinstance(section, dict) else None
    if not isinstance(section, dict) or path[-1] not in section:
        return "nothing"
    old = section[path[-1]]
    if kind == "odd":
        section[path[-1]] = rng.choice(ODD)
    elif kind == "number":
        scale = rng.choice((-1, 0, 0.5, 2, 3, 1e6))
        is_number = isinstance(old, int | float) and not isinstance(old, bool)
        section[path[-1]] = type(old)(old * scale + rng.choice((0, 1))) if is_number else scale
    elif kind == "string":
        section[path[-1]] = rng.choice(STRINGS)
    elif kind == "choice":
        section[path[-1]] = rng.choice(known[path])
    elif kind == "unknown":
        section[path[-1] + rng.choice("sx_")] = old
    else:
        del section[path[-1]]
    return f"{'.'.join(path)}: {kind} {section.get(path[-1])!r:.60}"


def use(values: dict[str, Any]) -> int:
    """All that a run makes of a config before it touches data: sizes, the model, the optimizer."""
    cfg = RunConfig.from_config_dict(values)
    classes = 3 * cfg.objective.has_labels
    cfg = cfg.resolve(vocab_size=37, steps_per_epoch=50.0, num_classes=classes)
    make_optimizer(cfg)
    if max(cfg.model.num_layers, cfg.model.num_encoder_layers) <= 8:
        abstract_params(build(cfg.model, cfg.compute_dtype))
    assert RunConfig.from_config_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg
    return OK


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 9))]
)
def test_bad_configs(seed, capsys):
    """300 configs with one to four things wrong, or not."""
    rng, known = random.Random(seed), choices(RunConfig)
    ends = collections.Counter()
    assert {guarded(lambda module=module: use(start(module))) for module in STARTS} == {(OK, "")}
    for number in range(300):
        values = start(rng.choice(STARTS))
        done = [spoil(rng, values, known) for _ in range(rng.choice((1, 1, 2, 3, 4)))]
        before = copy.copy(values)
        try:
            status, err = guarded(lambda values=values: use(values))
        except BaseException as error:
            raise AssertionError(f"config {number}, {done}") from error
        assert status in (OK, BAD_INPUT), done
        assert err.count("\n") == (status == BAD_INPUT), (done, err)
        assert status == OK or err.startswith("error: "), (done, err)
        assert values == before
        ends[status] += 1
    with capsys.disabled():
        print(f"\n300 configs of seed {seed}: {ends[OK]} make a run, {ends[BAD_INPUT]} are refused")
    assert ends[OK] >= 30
    assert ends[BAD_INPUT] >= 150


# --- run folders -----------------------------------------------------------------------------

HOWS = ("cut", "emptied", "removed", "flipped")
END = 12


def config(text: Path) -> RunConfig:
    return tiny.config(
        data__source="text",
        data__path=str(text),
        data__tokenizer__kind="char",
        data__pack=True,
        model__vocab_size=0,
        train__num_steps=END,
        train__log_every=1,
        **tiny.DROPOUT,
    )


def run_training(cfg: RunConfig, workdir: Path, progress: Any = None) -> int:
    """As train.py does it."""
    with locked(workdir) as folder:
        data = open_data(cfg, folder)
        found = cfg.resolve(vocab_size=data.tokenizer.vocab_size, steps_per_epoch=100.0)
        train(found, data, folder, progress=progress)
    return OK


def run_evaluation(workdir: Path, step: int | None = None) -> float:
    """As eval.py does it, without tables: the validation loss."""
    run = load(workdir, step)
    data = open_data(run.config, workdir)
    graphdef, state = nnx.split(run.model)
    batches = evaluation_batches(data.validation, 8, 16)
    evaluators = (EVALUATORS["perplexity"],)
    read_metrics(workdir / "metrics.jsonl")
    params = nnx.to_pure_dict(state)
    return evaluate_batches(evaluators, graphdef, params, batches)["loss"].mean


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


def damage(path: Path, how: str) -> None:
    raw = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "flipped":
        place = len(raw) // 3
        path.write_bytes(
            raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :] if raw else b"!"
        )
    else:
        path.write_bytes(raw[: len(raw) // 2] if how == "cut" else b"")


def state_of(workdir: Path) -> dict[str, np.ndarray]:
    return Checkpoints(workdir, read_only=True).arrays(END)


def lines_of(workdir: Path) -> list[dict[str, Any]]:
    found = read_metrics(workdir / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMED} for line in found]


class Killed(BaseException):
    pass


class KillAt9:
    def update(self, step, metrics):
        if step == 9:
            raise Killed


@dataclasses.dataclass(frozen=True)
class Runs:
    """A run that ended, and one that was killed after step 9, with checkpoints of 4 and 8."""

    cfg: RunConfig
    whole: Path
    cut: Path
    losses: list[float]  # on the validation rows, at 4 and at 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    rng, text = random.Random(0), folder / "text.txt"
    text.write_text("".join(rng.choice("abcde \n") for _ in range(3000)))
    cfg = config(text)
    run_training(cfg, folder / "whole")
    with pytest.raises(Killed):
        run_training(cfg, folder / "cut", KillAt9())
    assert Checkpoints(folder / "cut", read_only=True).steps() == [4, 8]
    losses = [run_evaluation(folder / "cut", step) for step in (4, 8)]
    return Runs(cfg, folder / "whole", folder / "cut", losses)


# Not lost: what a run rewrites as it goes on, and the checkpoint that it has no more need of.
REWRITTEN = ("metrics.jsonl", ".saved", "config.json", "tokens-", "checkpoints/4/")


def check_folder(runs: Runs, workdir: Path, name: str, how: str) -> str:
    """Damages one file, evaluates the run and starts it again; returns how both ended."""
    shutil.copytree(runs.cut, workdir)
    damage(workdir / name, how)
    before, case, ends = content(workdir), f"{name} {how}", []

    def evaluate() -> int:
        assert min(abs(run_evaluation(workdir) - loss) for loss in runs.losses) < 1e-6
        return OK

    for main in (evaluate, lambda: run_training(runs.cfg, workdir)):
        try:
            with alarm(200):
                status, err = guarded(main)
        except Exception as error:
            raise AssertionError(case) from error
        assert status in (OK, BAD_INPUT), case
        assert "Traceback" not in err and "at step 0" not in err, (case, err)
        if status == BAD_INPUT:
            assert err.splitlines()[-1].startswith("error: "), (case, err)
            assert err.count("\n") <= 2, (case, err)  # a token cache may be made again first
        ends.append(status)
        if status == BAD_INPUT or main is evaluate:
            assert same(content(workdir), before), (case, err)
    if ends[1] == OK:
        found, wanted = state_of(workdir), state_of(runs.whole)
        assert found.keys() == wanted.keys()
        for path in wanted:
            np.testing.assert_array_equal(found[path], wanted[path], err_msg=f"{case} {path}")
        if name != "metrics.jsonl":
            assert lines_of(workdir) == lines_of(runs.whole), case
        after = set(content(workdir).values())
        lost = [path for path in before if before[path] not in after]
        assert [path for path in lost if not path.startswith(REWRITTEN)] == [], case
    shutil.rmtree(workdir)
    return " and ".join({OK: "goes on", BAD_INPUT: "is refused"}[status] for status in ends)


def same(after: dict[str, bytes], before: dict[str, bytes]) -> bool:
    """Whether nothing has changed but token caches, which are made again where they are damaged."""
    kept = [{p: t for p, t in files.items() if "tokens-" not in p} for files in (after, before)]
    return kept[0] == kept[1]


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Ends what hangs."""

    def ring(*_):
        raise TimeoutError(f"still there after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def find(folder: Path, pattern: str) -> str:
    """The largest file that matches, relative to the folder."""
    found = max(folder.glob(pattern), key=lambda path: path.stat().st_size)
    return found.relative_to(folder).as_posix()


@pytest.mark.parametrize(
    ("pattern", "how", "ends"),
    [
        ("checkpoints/8/state/d/*", "flipped", "goes on and goes on"),
        ("config.json", "cut", "goes on and is refused"),
        ("tokenizer.json", "flipped", "is refused and is refused"),
    ],
)
def test_a_damaged_file(pattern, how, ends, runs, tmp_path):
    assert check_folder(runs, tmp_path / "run", find(runs.cut, pattern), how) == ends


PARTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_file_damaged_in_every_way(part, runs, tmp_path, capsys):
    cases = [(name, how) for how in HOWS for name in content(runs.cut)]
    assert len(cases) >= 120
    ends = collections.defaultdict(list)
    for name, how in cases[part::PARTS]:
        ends[check_folder(runs, tmp_path / "run", name, how)].append(f"{name} {how}")
    with capsys.disabled():
        for end, found in ends.items():
            print(f"\n{len(found)} damaged folders, (evaluation, training) {end}: {found}")
