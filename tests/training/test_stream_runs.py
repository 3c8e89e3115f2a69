"""Runs over a stream: what a checkpoint holds of it, and that a run goes on exactly."""

import itertools
import json
from pathlib import Path

import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.data import open_data, resolve
from jaxformer.training.loop import train
from tests.training import tiny


@pytest.fixture
def cfg(tmp_path):
    texts = (f"{i}: " + "x" * (i * 7 % 23) for i in range(40))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tiny.config(
        **tiny.DROPOUT,
        model__vocab_size=0,
        data__source="jsonl",
        data__path=str(path),
        data__pack=True,
        data__streaming=True,
        data__stream__window=6,
        data__stream__validation_documents=4,
        data__tokenizer__kind="byte",
        train__log_every=1,
        train__checkpoint_every=1,
        train__keep_latest=20,
    )


class Killed(BaseException):
    pass


class KillAt:
    def __init__(self, step):
        self.step = step

    def update(self, step, metrics):
        if step == self.step:
            raise Killed


def run(cfg, workdir, progress=None) -> None:
    data = open_data(cfg, workdir)  # anew, as after a restart
    train(resolve(cfg, data), data, workdir, progress=progress)


def chains(workdir) -> list[tuple[int, str, str]]:
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["data"], line["chain"]) for line in lines if "chain" in line]


def test_a_killed_run_goes_on_exactly(cfg, tmp_path):
    run(cfg, tmp_path / "whole")
    for step in (3, 8):
        with pytest.raises(Killed):
            run(cfg, tmp_path / "cut", KillAt(step))
    run(cfg, tmp_path / "cut")
    assert len(chains(tmp_path / "whole")) == 12
    assert chains(tmp_path / "cut") == chains(tmp_path / "whole")
    saved = Checkpoints(tmp_path / "cut", read_only=True)
    states = [saved.meta(step)["loader"] for step in saved.steps()]
    assert [state["step"] for state in states] == [*range(1, 13)]
    rows = [state["stream"]["row"] for state in states]
    assert rows == [8 * step for step in range(1, 13)]
    places = [tuple(s["stream"]["sources"][0][n] for n in ("epoch", "window", "document", "offset"))
              for s in states]  # fmt: skip
    assert all(a < b for a, b in itertools.pairwise(places))
    assert places[-1][0] > 0  # past an epoch
