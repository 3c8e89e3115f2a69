"""A sweep small enough to run in seconds: one layer of width 8, a few lines of text."""

from pathlib import Path
from typing import Any

from configs import base
from jaxformer.experiments.axes import parse_axis
from jaxformer.experiments.cells import Job, plan

TEXT = "the quick brown fox jumps over the lazy dog and looks around\n" * 20
SUITE = """
from configs.eval import text

def get_config():
    c = text.get_config()
    c.lengths, c.num_examples, c.samples.count = "4,8", 1, 0
    return c
"""
CHANGES = {
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.max_length": 8,
    "data.source": "text",
    "data.length": 8,
    "data.pack": True,
    "data.tokenizer.kind": "char",
    "schedule.warmup_steps": 1,
    "train.num_steps": 4,
    "train.num_epochs": 0.0,
    "train.batch_size": 4,
    "train.log_every": 1,
    "train.eval_every": 0,
    "train.checkpoint_every": 2,
    "train.max_skipped_steps": 1,
    "eval.batch_size": 8,
    "mesh.data": 1,
}


def write_inputs(folder: Path) -> None:
    """The text and the suite that `flags` and `jobs` name."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "suite.py").write_text(SUITE)


def flags(folder: Path) -> list[str]:
    """sweep.py's flags for what `values` holds."""
    changes = CHANGES | {"data.path": folder / "text.txt"}
    given = [f"--config.{path}={value}" for path, value in changes.items()]
    return ["--config=configs/base.py", *given, f"--suite={folder / 'suite.py'}"]


def values(folder: Path) -> dict[str, Any]:
    """The config of all cells."""
    c = base.get_config()
    c.update_from_flattened_dict(CHANGES | {"data.path": str(folder / "text.txt")})
    return c.to_dict()


def jobs(folder: Path, *axes: str, seeds: int = 1, lengths: str = "") -> list[Job]:
    parsed = [parse_axis(text) for text in axes]
    suite = str(folder / "suite.py")
    return plan(values(folder), parsed, seeds, suite=suite, lengths=lengths)
