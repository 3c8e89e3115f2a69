"""What a sweep will train and test on, shown before it starts."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data import Data, open_data
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.stream_loader import StreamLoader
from jaxformer.data.streams import RowStream
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.evaluation.inputs import read_inputs
from jaxformer.evaluation.lengths import trained_up_to
from jaxformer.experiments.cells import Job
from jaxformer.nn.positions.sources import document_limit

MOST = 160  # characters of an example


def examples(jobs: Sequence[Job]) -> dict[str, list[dict[str, str]]]:
    """A table for each different data section of the jobs: an example a training row and length."""
    tables, shown = {}, []
    for job in jobs:
        if (job.config.data, job.config.objective) in shown:
            continue
        shown.append((job.config.data, job.config.objective))
        arm = " ".join(f"{name}={value}" for name, value in job.cell.arm.items())
        title = "Examples" if len(tables) == 0 else f"Examples of {arm}"
        tables[title] = _table(job, open_data(job.config, None))
    return tables


def _table(job: Job, data: Data) -> list[dict[str, str]]:
    cfg = job.config
    if isinstance(data.train, RowStream):
        with contextlib.closing(StreamLoader(data.train, 1)) as loader:
            batch = next(loader)
    else:
        [batch] = list(evaluation_batches(data.train, 1, 1))
    lines = [{"split": "train", "length": "", "example": _text(batch, cfg, data.tokenizer)}]
    bound = document_limit(cfg.model).tokens
    found = read_inputs(cfg, data, job.suite).examples
    for tests in found if len(found) <= 4 else [*found[:2], *found[-2:]]:
        batch = next(iter(tests.batches(1, bound)))
        where = "test" if tests.length <= trained_up_to(cfg) else "test, beyond training"
        text = _text(batch, cfg, data.tokenizer)
        lines.append({"split": where, "length": str(tests.length), "example": text})
    return lines


def _text(batch: Mapping[str, Any], cfg: RunConfig, tokenizer: Tokenizer) -> str:
    """The first row without padding: of a task every token, its last target too.

    'none' where it counts nothing: a task of files may have no example of a length.
    """
    real = np.asarray(batch["weights"][0] > 0).reshape(-1)
    if not real.any():
        return "none"
    ids = np.asarray(batch["tokens"][0])[np.asarray(batch["segment_ids"][0]) != 0].tolist()
    if cfg.data.is_task:
        last = np.asarray(batch["targets"][0])[np.flatnonzero(real)[-1]]
        text = " ".join(tokenizer.token(index) for index in [*ids, last])
    else:
        text = " ".join(tokenizer.decode(ids).split())
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"
