"""From a config to a tokenizer and rows to train and validate on."""

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.cache import Document, TokenCache, fingerprint, open_cache, read_cache
from jaxformer.data.packing import DocumentRows, PackedRows, RowSource
from jaxformer.data.sources import files_fingerprint, find_files, read_texts, texts_of
from jaxformer.data.tasks.agreement import Agreement, agreement_tokenizer
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.errors import UserError

TASKS = {"agreement": (Agreement, agreement_tokenizer)}
ENCODED = 2**20  # characters tokenised at a time


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run reads. `task` is there only for the built-in tasks."""

    tokenizer: Tokenizer
    train: RowSource
    validation: RowSource
    task: Agreement | None = None


def open_data(cfg: RunConfig, workdir: str | os.PathLike[str] | None) -> Data:
    """Opens the data of a run, tokenised into `workdir`; None leaves nothing on the disk.

    `workdir/tokenizer.json` is written once and used ever after, so that a resumed run and an
    evaluation have the ids that the model was trained on. Raises UserError.
    """
    folder = None if workdir is None else Path(workdir)
    if cfg.data.is_task:
        make_task, make_words = TASKS[cfg.data.source]
        task = make_task(cfg)
        data = Data(make_words(), task.train, task.validation, task)
    else:
        tokenizer, caches = _tokenise(cfg.data, folder)
        train, validation = caches
        data = Data(tokenizer, _rows(cfg, train, True), _rows(cfg, validation, False))
    if folder is not None:
        _keep(data.tokenizer, folder)
    return data


def _rows(cfg: RunConfig, cache: TokenCache, shuffle: bool) -> RowSource:
    """Rows of one split; UserError if packing does not fill one, or no document has a pair."""
    tokens, length = int(cache.offsets[-1]), cfg.data.length
    packed = cfg.data.pack
    rows = PackedRows(cache, length, cfg.seed, shuffle) if packed else DocumentRows(cache, length)
    if not rows.num_tokens or (packed and tokens <= length):
        part = "training" if shuffle else "validation"
        raise UserError(
            cfg.data.path,
            f"has {tokens} tokens for {part}, too few for data.length = {length} and a next token",
            "give more text, lower data.length or change data.validation_fraction",
        )
    return rows


def _tokenise(cfg: DataConfig, workdir: Path | None) -> tuple[Tokenizer, list[TokenCache]]:
    """The tokenizer and the caches of both splits; texts are read only if one is missing."""
    files = find_files(cfg, workdir)
    content = files_fingerprint(files)
    saved = None if workdir is None else _saved_tokenizer(cfg, workdir / "tokenizer.json")
    if saved and workdir and files:
        caches = [read_cache(workdir, name) for name in _names(cfg, content, saved)]
        if all(caches):
            return saved, [cache for cache in caches if cache]
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arrow-", dir=workdir) as arrow:
        texts = read_texts(cfg, files, arrow)
        tokenizer = saved or make_tokenizer(
            cfg.tokenizer,
            lambda: texts_of(texts.train),
            lambda: itertools.chain(texts_of(texts.train), texts_of(texts.validation)),
        )
        _check_special(cfg, tokenizer)
        names = _names(cfg, content or [texts.fingerprint()], tokenizer)
        caches = [
            open_cache(workdir, name, tokenizer.vocab_size, _documents(cfg, tokenizer, split))
            for name, split in zip(names, (texts.train, texts.validation), strict=True)
        ]
    return tokenizer, caches


def _documents(cfg: DataConfig, tokenizer: Tokenizer, split: Any) -> Iterator[Document]:
    """Token ids of each document with its special tokens, and the bytes its targets stand for."""
    before = [tokenizer.bos_id] if cfg.add_bos else []
    after = [tokenizer.eos_id] if cfg.add_eos else []
    for group in _groups(texts_of(split)):
        try:
            encoded = tokenizer.encode_batch(group)
        except UserError as error:
            raise UserError(cfg.path, error.what, error.mend)
        for text, ids in zip(group, encoded, strict=True):
            # Without <s> the first token is read but never predicted.
            unpredicted = 0 if cfg.add_bos or not len(ids) else tokenizer.num_bytes(ids[0])
            size = max(0, len(text.encode()) - unpredicted)
            yield np.concatenate([before, ids, after]).astype(np.int32), size


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    group, size = [], 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= ENCODED:
            yield group
            group, size = [], 0
    if group:
        yield group


def _names(cfg: DataConfig, content: list[str], tokenizer: Tokenizer) -> list[str]:
    """Fingerprints of both caches: all that their content depends on."""
    shape = [cfg.source, cfg.text_field or "text", cfg.validation_fraction]
    special = [cfg.add_bos, cfg.add_eos]
    parts = [content, shape, special, tokenizer.fingerprint]
    return [fingerprint(*parts, split) for split in ("train", "validation")]


def _check_special(cfg: DataConfig, tokenizer: Tokenizer) -> None:
    for name, token in (("add_bos", tokenizer.bos_id), ("add_eos", tokenizer.eos_id)):
        if getattr(cfg, name) and token < 0:
            raise UserError(
                f"data.{name}",
                f"is true but {cfg.tokenizer.path} has no such token",
                "set it to false",
            )


def _keep(tokenizer: Tokenizer, workdir: Path) -> None:
    """Saves the tokenizer, or checks that it is the one saved before."""
    path = workdir / "tokenizer.json"
    if not path.exists():
        workdir.mkdir(parents=True, exist_ok=True)
        tokenizer.save(path)
    elif Tokenizer.load(path).fingerprint != tokenizer.fingerprint:
        raise _contradiction("data.tokenizer", path, "another one")


def _saved_tokenizer(cfg: DataConfig, path: Path) -> Tokenizer | None:
    """The tokenizer of an earlier start of this run; UserError if the config asks for another."""
    if not path.exists():
        return None
    saved, asked = Tokenizer.load(path), cfg.tokenizer
    if asked.kind == "file":
        if os.path.exists(asked.path):
            if Tokenizer.load(asked.path).fingerprint != saved.fingerprint:
                raise _contradiction("data.tokenizer.path", path, "another one")
    elif saved.kind != asked.kind:
        raise _contradiction("data.tokenizer.kind", path, f"of kind {saved.kind}")
    elif asked.kind == "bpe" and saved.vocab_size > asked.vocab_size:
        raise _contradiction("data.tokenizer.vocab_size", path, f"of {saved.vocab_size} tokens")
    return saved


def _contradiction(where: str, path: Path, what: str) -> UserError:
    return UserError(
        where,
        f"asks for a tokenizer other than the run's: {path} is {what}",
        "use the run's settings or a new workdir",
    )
