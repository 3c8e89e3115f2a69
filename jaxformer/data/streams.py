"""Rows of streamed documents: windows cut one after another, and where the next one begins.

The state is the place of the document that the next window begins in and the offset in it. All
that comes after follows from them, so no text and no buffer is ever saved.
"""

import dataclasses
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.cache import TokenCache, fingerprint
from jaxformer.data.document_stream import DocumentStream, Mark, open_documents
from jaxformer.data.drawn import MakeRow, lookahead, row_maker, words
from jaxformer.data.mixture import seed_of
from jaxformer.data.packing import RowSource
from jaxformer.data.places import find_place
from jaxformer.data.readers import read_files
from jaxformer.data.sources import check_apart, files_fingerprint, find_files, texts_of
from jaxformer.data.texts import make_rows
from jaxformer.data.tokenise import documents
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.data.workdir import check_special, saved_tokenizer

SOURCE = 3  # a stream of random words besides those of drawn.py
State = dict[str, Any]  # a JSON value
Window = tuple[np.ndarray, np.ndarray]  # tokens and segment ids, int32[length + lookahead]


class Windows:
    """Windows of one source from a state on, without end.

    With `pack` documents are joined and cut every `length` tokens, an epoch to the next as well;
    otherwise a document begins a row and fills as many as it needs. Windows overlap by
    `lookahead` tokens, as in packing.py.
    """

    def __init__(
        self, source: DocumentStream, length: int, ahead: int, pack: bool, state: State | None
    ):
        place: State = dict(state or dataclasses.asdict(Mark()) | {"offset": 0})
        self._length, self._ahead, self._pack = length, ahead, pack
        self._offset = place.pop("offset")
        self._documents = source.read(Mark(**place))
        self._held: deque[tuple[Mark, np.ndarray]] = deque()
        self._mark = Mark(**place)  # of the document that the next window begins in

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        if not self._held:
            self._held.append(next(self._documents))
        size, count = self._length + self._ahead, 0
        tokens, segments = np.zeros((2, size), np.int32)
        start = self._offset
        for number in range(size):
            if number == len(self._held):
                self._held.append(next(self._documents))
            part = self._held[number][1][start : start + size - count]
            tokens[count : count + len(part)] = part
            segments[count : count + len(part)] = number + 1
            count, start = count + len(part), 0
            if count == size or not self._pack:
                break
        self._advance()
        return tokens, segments

    def state(self) -> State:
        """From where the next window follows."""
        return dataclasses.asdict(self._mark) | {"offset": self._offset}

    def _advance(self) -> None:
        self._offset += self._length
        unused = 0 if self._pack else self._ahead  # the last token of a document begins no row
        while self._held and self._offset >= len(self._held[0][1]) - unused:
            self._offset -= len(self._held.popleft()[1])
            if not self._pack:
                self._offset = 0
        if not self._held:
            self._held.append(next(self._documents))
        self._mark = self._held[0][0]


@dataclasses.dataclass(frozen=True)
class RowStream:
    """Rows of one or several sources; which one row r is of follows from (seed, r)."""

    sources: tuple[DocumentStream, ...]
    weights: tuple[float, ...]
    length: int
    pack: bool
    ahead: int
    seed: int
    make: MakeRow
    fingerprint: str

    def rows(self, state: State | None = None) -> "Rows":
        """Rows from a state on, None for the first."""
        return Rows(self, state)

    def source_of(self, row: int) -> int:
        """The source of a row."""
        if len(self.sources) == 1:
            return 0
        drawn = words(self.seed, SOURCE, 0, row, 1)[0] / 2.0**64
        bounds = np.cumsum(self.weights) / sum(self.weights)
        return min(int(np.searchsorted(bounds, drawn, side="right")), len(self.sources) - 1)


class Rows:
    """Iterates over windows and their numbers, which `RowStream.make` makes rows of."""

    def __init__(self, stream: RowStream, state: State | None):
        states = state["sources"] if state else [None] * len(stream.sources)
        self._stream, self.number = stream, state["row"] if state else 0
        self._windows = [
            Windows(source, stream.length, stream.ahead, stream.pack, its)
            for source, its in zip(stream.sources, states, strict=True)
        ]

    def __iter__(self) -> Iterator[tuple[Window, int]]:
        return self

    def __next__(self) -> tuple[Window, int]:
        number = self.number
        window = next(self._windows[self._stream.source_of(number)])
        self.number += 1
        return window, number

    def state(self) -> State:
        """From where the next row follows."""
        return {"row": self.number, "sources": [windows.state() for windows in self._windows]}


def open_stream(cfg: RunConfig, workdir: Path | None) -> tuple[Tokenizer, RowStream, RowSource]:
    """The tokenizer, the rows of training and those of validation; raises UserError."""
    data, ahead = cfg.data, lookahead(cfg.objective.kind)
    tokenizer = saved_tokenizer(data, workdir) or make_tokenizer(
        data.tokenizer, list, list, with_mask=cfg.objective.kind == "masked_lm"
    )
    check_special(cfg, tokenizer)
    several = bool(data.mixture.paths)
    if several:
        check_apart([find_files(dataclasses.replace(data, path=p), workdir) for p in data.paths])
    sources = tuple(
        open_documents(
            dataclasses.replace(data, path=path),
            tokenizer,
            workdir,
            seed_of(cfg.data_seed, index) if several else cfg.data_seed,
            1 if data.pack else 1 + ahead,
        )
        for index, path in enumerate(data.paths)
    )
    shape = [data.length, data.pack, list(data.mixture.weights), cfg.data_seed, cfg.objective.kind]
    shape += [cfg.objective.masked_lm.to_dict()] * (cfg.objective.kind == "masked_lm")
    stream = RowStream(
        sources,
        data.mixture.weights,
        data.length,
        data.pack,
        ahead,
        cfg.data_seed,
        row_maker(cfg, tokenizer),
        fingerprint("stream", [source.fingerprint for source in sources], *shape),
    )
    held_out = _validation(cfg, tokenizer, sources, workdir)
    for source in sources:  # whatever is wrong with the beginning is refused now
        next(Windows(source, data.length, ahead, data.pack, None))
    where = data.validation_path or data.name
    return tokenizer, stream, make_rows(cfg, tokenizer, held_out, where)


def _validation(
    cfg: RunConfig, tokenizer: Tokenizer, sources: Sequence[DocumentStream], workdir: Path | None
) -> TokenCache:
    """The validation documents, which are tokenised once."""
    data, place = cfg.data, find_place(cfg.data, workdir)
    special = {"add_bos": data.add_bos, "add_eos": data.add_eos}
    parts = [special, data.source, data.text_field, data.columns, tokenizer.fingerprint]
    if not data.validation_path:
        count = data.stream.validation_documents
        texts = [text for source in sources for text in source.first_texts(count)]
        name = fingerprint("streamed validation", texts, *parts)
        docs = documents(tokenizer, texts, data.name, **special)
        return place.open(name, tokenizer.vocab_size, docs)
    files = find_files(
        dataclasses.replace(data, path=data.validation_path), workdir, "data.validation_path"
    )
    name = fingerprint("validation", files_fingerprint(files), *parts)
    if cache := place.read(name):
        return cache
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arrow-", dir=workdir) as arrow:
        texts = texts_of(read_files(data, files, arrow))
        docs = documents(
            tokenizer, (t for t in texts if t.strip()), data.validation_path, **special
        )
        return place.open(name, tokenizer.vocab_size, docs)
