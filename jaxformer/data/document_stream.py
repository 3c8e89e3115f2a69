"""Documents read and tokenised while training, endlessly, from Hugging Face `IterableDataset`s.

Documents are read a window at a time, and a window's order is drawn from (seed, epoch, window). So
the place of any document is told by the state of the dataset at the beginning of its window and its
number within: a few numbers, from which the window is read and shuffled again.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.config import DataConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.columns import READERS, read_rows, read_text
from jaxformer.data.order import draw_key, draw_permutation
from jaxformer.data.readers import open_hub_stream, reading
from jaxformer.data.sources import find_files
from jaxformer.data.tokenise import documents
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import TrainingFailed, UserError

READ = 256  # documents in a window that is not shuffled
ENDS = 2**16  # bytes at both ends of a file that its fingerprint is of

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Mark:
    """The place of a document; `source` is a state of the dataset, None for its beginning."""

    epoch: int = 0
    window: int = 0
    source: dict[str, Any] | None = None
    document: int = 0


@dataclasses.dataclass(frozen=True)
class DocumentStream:
    """One source. `make` opens it anew; `least` tokens are what a document must have to be used."""

    cfg: DataConfig
    make: Callable[[], Any]
    fingerprint: str
    tokenizer: Tokenizer
    seed: int
    least: int

    def read(self, mark: Mark) -> Iterator[tuple[Mark, np.ndarray]]:
        """Documents from a place on, each with its own place and token ids; without end.

        Raises UserError where a whole epoch has none.
        """
        for epoch in itertools.count(mark.epoch):
            found = mark.source is not None
            for place, ids in self._epoch(epoch, mark):
                if len(ids) >= self.least:
                    found = True
                    yield place, ids
            if not found:
                what = f"holds no document of {self.least} tokens or more to train on"
                raise UserError(self.cfg.path, what, "give more text")
            mark = Mark(epoch + 1)
            log.info("%s: epoch %d begins", self.cfg.path, mark.epoch)

    def first_texts(self, count: int) -> list[str]:
        """The first documents, which are kept for validation."""
        return list(itertools.islice(_texts(self.make(), self.cfg), count))

    def _epoch(self, epoch: int, mark: Mark) -> Iterator[tuple[Mark, np.ndarray]]:
        data, size = self.make(), self.cfg.stream.window
        special = {"add_bos": self.cfg.add_bos, "add_eos": self.cfg.add_eos}
        if mark.source is not None:
            data.load_state_dict(mark.source)
        texts = _texts(data, self.cfg)
        if mark.source is None:
            for _ in range(self.cfg.stream.validation_documents):
                next(texts, None)
        first = mark.document
        for window in itertools.count(mark.window):
            begin = mark.source if window == mark.window else None
            begin = begin or json.loads(json.dumps(data.state_dict()))  # which goes on changing
            read = list(itertools.islice(texts, size or READ))
            if not read:
                return
            order = draw_permutation(len(read), draw_key(self.seed, epoch), window)
            chosen = (order if size else np.arange(len(read)))[first:].tolist()
            ids = documents(self.tokenizer, (read[i] for i in chosen), self.cfg.path, **special)
            for document, (tokens, _) in enumerate(ids, first):
                yield Mark(epoch, window, begin, document), tokens
            first = 0


def open_documents(
    cfg: DataConfig, tokenizer: Tokenizer, workdir: Path | None, seed: int, least: int
) -> DocumentStream:
    """Opens the source `cfg.path`; raises UserError where there is none."""
    if cfg.source == "hub":
        make, known_by = lambda: open_hub_stream(cfg), [[cfg.path]]
        make()
    else:
        files = find_files(cfg, workdir)
        make, known_by = lambda: _open_files(cfg, files), [_describe(path) for path in files]
    parts = [cfg.source, cfg.text_field or "text", cfg.columns, cfg.add_bos, cfg.add_eos]
    parts += [dataclasses.astuple(cfg.stream), seed, tokenizer.fingerprint]
    return DocumentStream(cfg, make, fingerprint(known_by, *parts), tokenizer, seed, least)


def _texts(data: Any, cfg: DataConfig) -> Iterator[str]:
    try:
        for example in data:
            if (text := example["text"]) and text.strip():
                yield text
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # of the network, or of whatever the hub's files are
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise TrainingFailed(f"{cfg.path}: the stream broke ({reason}); the same command resumes")


def _open_files(cfg: DataConfig, files: list[Path]) -> Any:
    """A dataset with a shard for each file."""
    import datasets

    return datasets.IterableDataset.from_generator(
        _read, gen_kwargs={"cfg": cfg, "names": [str(path) for path in files]}
    )


def _read(cfg: DataConfig, names: list[str]) -> Iterator[dict[str, str]]:
    if cfg.source in READERS:
        rows = read_rows(cfg, names, {"text_field": cfg.text_field or "text"})
        yield from ({"text": text} for (text,) in rows)
    else:
        yield from ({"text": read_text(Path(name))} for name in names)


def _describe(path: Path) -> list[Any]:
    """Name, size and the hash of both ends: a stream is too long to be read in advance."""
    with reading(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(file.read(ENDS))
        file.seek(max(0, size - ENDS))
        digest.update(file.read(ENDS))
    return [path.name, size, digest.hexdigest()]
