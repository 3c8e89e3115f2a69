"""Which checkpoint of a cell is evaluated: the last, unless asked for and possible.

Choosing by what a table then reports makes it optimistic. So `ood`, which takes the checkpoint that
does best beyond the training lengths, is there for showing how much (and for comparing with papers
that did so), must be allowed by a flag, and stamps everything that is written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.experiments.rows import OOD, SHARES, bucket_of, widened

SELECTIONS = ("last", "id_validation", "ood")
BY = (*SHARES, "loss", "nll")  # the first that was measured; of the last two less is better


def check_flags(select: str, allow_ood: bool) -> None:
    """Raises UserError for a selection that is none, or that is not allowed."""
    if select not in SELECTIONS:
        raise UserError("--select", f"is {select!r}", f"choose from {', '.join(SELECTIONS)}")
    if select == "ood" and not allow_ood:
        what = "is ood: choosing by test results makes them optimistic"
        raise UserError("--select", what, "--allow_ood_selection does it and stamps all results")


def check_selection(select: str, cfg: RunConfig) -> None:
    """Raises UserError where a run would not keep the checkpoints that are chosen from."""
    if select != "last" and not cfg.train.keep_best:
        mend = "set --config.train.keep_best=1: checkpoints with their validation loss stay then"
        raise UserError("train.keep_best", f"is 0 while --select={select}", mend)
    if select == "ood" and cfg.train.keep_latest < 2:
        mend = "keep all: set it to train.num_steps / train.checkpoint_every"
        raise UserError("train.keep_latest", "is below 2 while --select=ood", mend)
    if select != "last" and not cfg.train.checkpoint_every:
        mend = "say how often checkpoints are saved"
        raise UserError("train.checkpoint_every", f"is 0 while --select={select}", mend)


def candidates(select: str, folder: Path) -> Sequence[int | None]:
    """The steps to evaluate of a trained run: one, None for the newest, or of `ood` all kept."""
    if select == "last":
        return [None]
    checkpoints = Checkpoints(folder, read_only=True)
    try:
        if select == "ood":
            return checkpoints.steps()
        best = checkpoints.best_step()
    finally:
        checkpoints.close()
    if best is None:
        mend = "it was never finite: train again with other settings"
        raise UserError(str(folder), "has no checkpoint with a validation loss", mend)
    return [best]


def best_beyond(
    results: Mapping[int, Sequence[Mapping[str, Any]]], trained_up_to: int | None
) -> int:
    """Of step → rows the step that does best beyond the training lengths, the first of equals."""
    scores = {step: _score(rows, trained_up_to) for step, rows in results.items()}
    return max(scores, key=lambda step: (scores[step], -step))


def _score(results: Sequence[Mapping[str, Any]], trained_up_to: int | None) -> float:
    rows = [
        row
        for row in widened(results)
        if row.get("bucket", bucket_of(row.get("length", ""), trained_up_to)) == OOD
    ]
    for metric in BY:
        if values := [row[metric] for row in rows if row.get(metric) is not None]:
            mean = float(np.mean(values))
            return mean if metric in SHARES else -mean
    raise UserError("--select", "is ood, but no length is beyond training", "give --lengths")
