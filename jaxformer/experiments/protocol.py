"""How the numbers of a sweep came about, beside every table of them."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxformer.evaluation.lengths import length_name, trained_up_to
from jaxformer.experiments.cells import Job

PACKAGES = ("jaxformer", "jax", "jaxlib", "flax", "optax", "numpy")
SELECTED = {
    "last": "last step",
    "id_validation": "lowest validation loss, in distribution",
    "ood": "best beyond the training lengths: NOT a measure of generalization",
}
STAMP = (
    "Checkpoints were selected out of distribution: these numbers are optimistic, and no measure "
    "of generalization."
)


def describe(jobs: Sequence[Job], select: str) -> dict[str, str]:
    """What to know before comparing: one text a line; values that differ by arm are all named."""
    texts = {line: _values(jobs, of) for line, of in LINES.items()}
    seeds = sorted({job.cell.seed for job in jobs})
    grids = {str((j.config.optimizer, j.config.schedule, j.config.train)) for j in jobs}
    grid = "all arms share one grid of settings" if len(grids) == 1 else "arms train differently"
    given = {
        "seeds": ", ".join(map(str, seeds)),
        "checkpoint": SELECTED[select],
        "budget": f"fixed: no early stop; {grid}",
    }
    return {line: text for line, text in (texts | given).items() if text}


def versions() -> dict[str, str]:
    """Of Python, of the packages that decide the numbers, and the commit of the source tree."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return found
    return found | ({"commit": ended.stdout.strip()} if ended.returncode == 0 else {})


def _optimizer(job: Job) -> str:
    optimizer, schedule = job.config.optimizer, job.config.schedule
    decay = f", weight decay {optimizer.weight_decay:g}" if optimizer.kind == "adamw" else ""
    return (
        f"{optimizer.kind}{decay}, {schedule.kind} with peak {schedule.peak_value:g}, "
        f"{schedule.warmup_steps} warmup steps"
    )


def _decoding(job: Job) -> str:
    if not {"exact_match", "protocol"} & set(job.suite.evaluators):
        return ""
    model = job.config.model
    if "rope" in model.position_kinds and model.position.rope.scaling.kind == "dynamic_ntk":
        return "by one teacher-forced pass, in which dynamic NTK knows the length of the answer"
    return "greedy, by one teacher-forced pass: the exact match of both is the same"


LINES: dict[str, Callable[[Job], Any]] = {
    "data": lambda job: job.config.data.source,
    "length": lambda job: length_name(job.config),
    "longest in training": lambda job: trained_up_to(job.config),
    "test lengths": lambda job: job.suite.lengths,
    "examples a length": lambda job: (
        f"{job.suite.num_examples or 1000:,}" if job.config.data.is_task else ""
    ),
    "begin token": lambda job: "yes" if job.config.data.add_bos else "no",
    "position ids": lambda job: job.config.model.position.source.kind,
    "training": lambda job: (
        f"{job.config.train.num_steps:,} steps of {job.config.train.batch_size} rows"
    ),
    "optimizer": _optimizer,
    "precision": lambda job: job.config.compute_dtype,
    "model": lambda job: (
        f"{job.config.model.architecture}, {job.config.model.num_layers} layers, "
        f"width {job.config.model.d_model}"
        + f", {job.config.model.num_heads} heads"
        * (job.config.model.architecture != "lstm")
    ),
    "evaluation": lambda job: ", ".join(job.suite.evaluators),
    "decoding": _decoding,
}


def _values(jobs: Sequence[Job], of: Callable[[Job], Any]) -> str:
    return " | ".join(filter(None, dict.fromkeys(str(of(job)) for job in jobs)))
