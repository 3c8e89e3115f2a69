"""From a config to a tokenizer and rows to train and validate on."""

import dataclasses
import itertools
import os
import tempfile
from pathlib import Path

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.cache import TokenCache, fingerprint, open_cache, read_cache
from jaxformer.data.drawn import MaskedRows, PrefixRows
from jaxformer.data.examples import open_examples
from jaxformer.data.packing import DocumentRows, PackedRows, RowSource
from jaxformer.data.sources import files_fingerprint, find_files, read_texts, texts_of
from jaxformer.data.tasks.agreement import Agreement, agreement_tokenizer
from jaxformer.data.tasks.rows import SampledTask, task_tokenizer
from jaxformer.data.tokenise import documents
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.data.workdir import check_special, keep_classes, keep_tokenizer, saved_tokenizer
from jaxformer.errors import UserError

TASKS = {"agreement": (Agreement, agreement_tokenizer), "task": (SampledTask, task_tokenizer)}


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run reads. `task` is there only for the built-in tasks, `classes` for classifiers."""

    tokenizer: Tokenizer
    train: RowSource
    validation: RowSource
    task: Agreement | SampledTask | None = None
    classes: tuple[str, ...] = ()


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
    elif cfg.objective.has_pairs or cfg.objective.has_labels:
        found = open_examples(cfg, folder)
        data = Data(found.tokenizer, found.train, found.validation, classes=found.classes)
    else:
        tokenizer, (train, validation) = _tokenise(cfg, folder)
        train_rows = _rows(cfg, tokenizer, train, True)
        data = Data(tokenizer, train_rows, _rows(cfg, tokenizer, validation, False))
    if folder is not None:
        keep_tokenizer(data.tokenizer, folder)
        if data.classes:
            keep_classes(data.classes, folder)
    return data


def resolve(cfg: RunConfig, data: Data) -> RunConfig:
    """The config with what only its data can tell: vocabulary, classes, number of steps."""
    return cfg.resolve(
        vocab_size=data.tokenizer.vocab_size,
        steps_per_epoch=len(data.train) / cfg.train.batch_size,
        num_classes=len(data.classes),
        digits=data.tokenizer.digits() if cfg.model.position.source.kind == "abacus" else (),
    )


def _rows(cfg: RunConfig, tokenizer: Tokenizer, cache: TokenCache, shuffle: bool) -> RowSource:
    """Rows of one split; UserError if packing does not fill one, or no document has a pair."""
    tokens, length = int(cache.offsets[-1]), cfg.data.length
    packed, kind = cfg.data.pack, cfg.objective.kind
    lookahead = 0 if kind == "masked_lm" else 1
    if packed:
        rows = PackedRows(cache, length, cfg.data_seed, shuffle, lookahead)
    else:
        rows = DocumentRows(cache, length, lookahead)
    if not rows.num_tokens or (packed and tokens <= length):
        part = "training" if shuffle else "validation"
        raise UserError(
            cfg.data.path,
            f"has {tokens} tokens for {part}, too few for data.length = {length} and a next token",
            "give more text, lower data.length or change data.validation_fraction",
        )
    if kind == "masked_lm":
        return MaskedRows(rows, cfg.objective.masked_lm, tokenizer, cfg.data_seed)
    return PrefixRows(rows, cfg.data_seed) if kind == "prefix_lm" else rows


def _tokenise(cfg: RunConfig, workdir: Path | None) -> tuple[Tokenizer, list[TokenCache]]:
    """The tokenizer and the caches of both splits; texts are read only if one is missing."""
    data = cfg.data
    files = find_files(data, workdir)
    held_out = []
    if data.validation_path:
        held_out = find_files(dataclasses.replace(data, path=data.validation_path), workdir)
    content = [files_fingerprint(part) for part in (files, held_out) if part]
    saved = saved_tokenizer(data, workdir)
    if saved and workdir and files:
        caches = [read_cache(workdir, name) for name in _names(data, content, saved)]
        if all(caches):
            check_special(cfg, saved)
            return saved, [cache for cache in caches if cache]
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arrow-", dir=workdir) as arrow:
        texts = read_texts(data, files, arrow, held_out)
        tokenizer = saved or make_tokenizer(
            data.tokenizer,
            lambda: texts_of(texts.train),
            lambda: itertools.chain(texts_of(texts.train), texts_of(texts.validation)),
            with_mask=cfg.objective.kind == "masked_lm",
        )
        check_special(cfg, tokenizer)
        names = _names(data, content or [[texts.fingerprint()]], tokenizer)
        special = {"add_bos": data.add_bos, "add_eos": data.add_eos}
        caches = [
            open_cache(workdir, name, tokenizer.vocab_size, docs)
            for name, split in zip(names, (texts.train, texts.validation), strict=True)
            for docs in [documents(tokenizer, texts_of(split), data.path, **special)]
        ]
    return tokenizer, caches


def _names(cfg: DataConfig, content: list[list[str]], tokenizer: Tokenizer) -> list[str]:
    """Fingerprints of both caches: all that their content depends on."""
    shape = [cfg.source, cfg.text_field or "text", cfg.columns]
    shape += [] if cfg.validation_path else [cfg.held_out]
    special = [cfg.add_bos, cfg.add_eos]
    parts = [content, shape, special, tokenizer.fingerprint]
    return [fingerprint(*parts, split) for split in ("train", "validation")]
