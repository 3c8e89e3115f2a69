"""From a config to a tokenizer and rows to train and validate on."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.examples import open_examples
from jaxformer.data.images import open_images
from jaxformer.data.mixture import MixedRows
from jaxformer.data.packing import RowSource
from jaxformer.data.streams import RowStream, open_stream
from jaxformer.data.tasks.agreement import Agreement, agreement_tokenizer
from jaxformer.data.tasks.rows import SampledTask, task_tokenizer
from jaxformer.data.texts import open_texts
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.data.workdir import keep_classes, keep_tokenizer

TASKS = {"agreement": (Agreement, agreement_tokenizer), "task": (SampledTask, task_tokenizer)}


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run reads. `task` is there only for the built-in tasks, `classes` for classifiers."""

    tokenizer: Tokenizer
    train: RowSource | RowStream
    validation: RowSource
    task: Agreement | SampledTask | None = None
    classes: tuple[str, ...] = ()


def source_fingerprints(rows: RowSource | RowStream) -> list[str]:
    """Those of the sources of training rows one by one, as in data.paths."""
    several = isinstance(rows, MixedRows | RowStream)
    return [source.fingerprint for source in rows.sources] if several else [rows.fingerprint]


def changed_sources(cfg: DataConfig, before: Sequence[str], now: Sequence[str]) -> str:
    """Names the sources that are no longer what they were; all where that is not known.

    Validation files of their own are part of every source, and named where all have changed.
    """
    known = len(before) == len(now) == len(cfg.paths)
    changed = [p for n, p in enumerate(cfg.paths) if not known or before[n] != now[n]]
    if cfg.validation_path and len(changed) == len(cfg.paths):
        changed.append(cfg.validation_path)
    return ", ".join(changed) or "data"


def open_data(cfg: RunConfig, workdir: str | os.PathLike[str] | None) -> Data:
    """Opens the data of a run, tokenised into `workdir`; None leaves nothing on the disk.

    `workdir/tokenizer.json` is written once and used ever after, so that a resumed run and an
    evaluation have the ids that the model was trained on. Raises UserError.
    """
    folder = None if workdir is None else Path(workdir)
    if cfg.data.is_task:
        open_task, make_words = TASKS[cfg.data.source]
        task = open_task(cfg)
        data = Data(make_words(cfg), task.train, task.validation, task)
    elif cfg.data.source == "images":
        classes, train, validation = open_images(cfg)
        data = Data(word_tokenizer(()), train, validation, classes=classes)  # of no text
    elif cfg.objective.has_pairs or cfg.objective.has_labels:
        found = open_examples(cfg, folder)
        data = Data(found.tokenizer, found.train, found.validation, classes=found.classes)
    else:
        data = Data(*(open_stream if cfg.data.streaming else open_texts)(cfg, folder))
    if folder is not None:
        keep_tokenizer(data.tokenizer, folder)
        if data.classes:
            keep_classes(data.classes, folder)
    return data


def resolve(cfg: RunConfig, data: Data) -> RunConfig:
    """The config with what only its data can tell: vocabulary, classes, number of steps."""
    rows = 0 if isinstance(data.train, RowStream) else len(data.train)
    return cfg.resolve(
        vocab_size=data.tokenizer.vocab_size,
        steps_per_epoch=rows / cfg.train.batch_size,
        num_classes=len(data.classes),
        digits=data.tokenizer.digits() if cfg.model.position.source.kind == "abacus" else (),
    )
