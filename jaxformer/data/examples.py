"""From files to rows of pairs (seq2seq) and of labelled texts (classification).

An example has two sides: source and target text, or text and classes. Each side of each split is
tokenised once into a cache of its own; classes are cached like tokens.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.cache import Document, TokenCache, fingerprint, open_cache, read_cache
from jaxformer.data.columns import Row, read_parallel, read_rows
from jaxformer.data.packing import RowSource
from jaxformer.data.rows import LabelledRows, PairRows
from jaxformer.data.sources import files_fingerprint, find_files
from jaxformer.data.tokenise import documents, encode
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.data.workdir import check_special, saved_classes, saved_tokenizer
from jaxformer.errors import UserError

SIDES = ("first", "second")


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples that are read anew by each iteration; `kept` bool[N] picks some of the files'."""

    read: Callable[[], Iterator[Row]]
    kept: np.ndarray | None = None

    def __iter__(self) -> Iterator[Row]:
        rows = (row for row in self.read() if all(field.strip() for field in row))
        return rows if self.kept is None else itertools.compress(rows, self.kept)

    def side(self, index: int) -> Iterator[str]:
        return (row[index] for row in self)


@dataclasses.dataclass(frozen=True)
class Opened:
    """What `open_examples` finds."""

    tokenizer: Tokenizer
    classes: tuple[str, ...]
    train: RowSource
    validation: RowSource


def open_examples(cfg: RunConfig, workdir: Path | None) -> Opened:
    """Opens pairs or labelled texts, tokenised into `workdir`; files are read once. UserError."""
    data, splits = cfg.data, ("train", "validation")
    files = _find(data)
    content = [files_fingerprint([*first, *second]) for first, second in files.values()]
    tokenizer, classes = saved_tokenizer(data, workdir), saved_classes(workdir)
    labelled = cfg.objective.has_labels
    caches: dict[str, list[TokenCache]] = {}
    if tokenizer is not None and workdir is not None and (classes or not labelled):
        for split in splits:
            found = (
                read_cache(workdir, n) for n in _names(cfg, content, tokenizer, classes, split)
            )
            caches[split] = [cache for cache in found if cache is not None]
    if not all(len(caches.get(split, [])) == len(SIDES) for split in splits):
        examples = _split(cfg, files)
        tokenizer = tokenizer or _make_tokenizer(cfg, examples)
        check_special(cfg, tokenizer)
        if labelled:
            classes = classes or find_classes(cfg, examples["train"])
        for split in splits:
            names = _names(cfg, content, tokenizer, classes, split)
            caches[split] = _tokenise(cfg, examples[split], tokenizer, classes, workdir, names)
    assert tokenizer is not None
    rows = {split: _rows(cfg, caches[split], split == "train") for split in splits}
    return Opened(tokenizer, classes, rows["train"], rows["validation"])


def read_examples(cfg: RunConfig) -> dict[str, list[Row]]:
    """Both texts of every example of 'train' and 'validation', as they are in the files."""
    return {name: list(split) for name, split in _split(cfg, _find(cfg.data)).items()}


def open_file(
    cfg: RunConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    path: str | Path,
    target_path: str | Path = "",
) -> RowSource:
    """Rows of other files of a run's kind, such as a test set, in their order; UserError."""
    files = _files(cfg.data, str(path), str(target_path))
    split = Split(_reader(cfg, files))
    names = _names(cfg, [files_fingerprint([*files[0], *files[1]])], tokenizer, classes, "file")
    return _rows(cfg, _tokenise(cfg, split, tokenizer, classes, None, names), False)


def find_classes(cfg: RunConfig, train: Split) -> tuple[str, ...]:
    """The names in the training examples, sorted; numbers by their value."""
    labels = (label for text in train.side(1) for label in _labels(cfg, text))
    classes = set(labels)
    if len(classes) < 2:
        what = f"has {len(classes)} class in column {cfg.data.label_field or 'label'!r}"
        raise UserError(cfg.data.path, what, "give examples of two classes or more")
    if all(name.isdecimal() and name.isascii() for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return tuple(sorted(classes))


def _find(data: DataConfig) -> dict[str, tuple[list[Path], list[Path]]]:
    """The files of each split that has some of its own."""
    files = {"train": _files(data, data.path, data.target_path)}
    if data.validation_path:
        held_out = _files(data, data.validation_path, data.validation_target_path)
        files["validation"] = held_out
    return files


def _files(data: DataConfig, path: str, target_path: str) -> tuple[list[Path], list[Path]]:
    first = find_files(dataclasses.replace(data, path=path))
    if not target_path:
        return first, []
    try:
        return first, find_files(dataclasses.replace(data, path=target_path))
    except UserError as error:
        mend = error.mend.replace("data.path", "data.target_path")
        raise UserError(error.where, error.what, mend)


def _reader(cfg: RunConfig, files: tuple[list[Path], list[Path]]) -> Callable[[], Iterator[Row]]:
    data = cfg.data
    if cfg.objective.has_labels:
        fields = {
            "text_field": data.text_field or "text",
            "label_field": data.label_field or "label",
        }
    elif data.source == "text":
        return lambda: read_parallel(*files)
    else:
        fields = {
            "source_field": data.source_field or "source",
            "target_field": data.target_field or "target",
        }
    return lambda: read_rows(data, files[0], fields)


def _split(cfg: RunConfig, files: dict[str, tuple[list[Path], list[Path]]]) -> dict[str, Split]:
    """By file, or by a share of the examples drawn from `split_seed` (files are often sorted)."""
    whole, data = Split(_reader(cfg, files["train"])), cfg.data
    count = sum(1 for _ in whole)
    if not count:
        raise UserError(data.path, "holds no examples", "give data with text in it")
    if "validation" in files:
        held_out = Split(_reader(cfg, files["validation"]))
        if not any(True for _ in held_out):
            mend = "give data with text in it"
            raise UserError(data.validation_path, "holds no examples", mend)
        return {"train": whole, "validation": held_out}
    if count == 1:
        mend = "give more, or data.validation_path"
        raise UserError(data.path, "holds a single example", mend)
    size = min(count - 1, max(1, round(count * data.held_out)))
    words = np.random.Philox(key=[data.split_seed, 0]).random_raw(count)
    is_held_out = np.zeros(count, bool)
    is_held_out[np.argsort(words, kind="stable")[:size]] = True
    return {"train": Split(whole.read, ~is_held_out), "validation": Split(whole.read, is_held_out)}


def _make_tokenizer(cfg: RunConfig, examples: dict[str, Split]) -> Tokenizer:
    """One tokenizer for both sides of pairs."""
    sides = (0, 1) if cfg.objective.has_pairs else (0,)

    def texts(*splits: str) -> Iterable[str]:
        return (text for split in splits for side in sides for text in examples[split].side(side))

    return make_tokenizer(
        cfg.data.tokenizer, lambda: texts("train"), lambda: texts("train", "validation")
    )


def _names(
    cfg: RunConfig,
    content: list[list[str]],
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    split: str,
) -> list[str]:
    """Fingerprints of the caches of a split: all that their content depends on."""
    data = cfg.data
    columns = [data.text_field, data.label_field, data.source_field, data.target_field]
    drawn = [] if data.validation_path else [data.held_out, data.split_seed]
    shape = [cfg.objective.kind, data.source, *columns, data.columns, *drawn]
    special = [data.add_bos, data.add_eos]
    parts = [content, shape, special, list(classes), tokenizer.fingerprint]
    return [fingerprint(*parts, split, side) for side in SIDES]


def _tokenise(
    cfg: RunConfig,
    split: Split,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    workdir: Path | None,
    names: list[str],
) -> list[TokenCache]:
    data, kind, ids = cfg.data, cfg.objective.kind, {name: i for i, name in enumerate(classes)}
    words = tokenizer.vocab_size
    special = {"add_bos": data.add_bos, "add_eos": data.add_eos}
    made: list[tuple[int, Iterable[Document]]]
    if kind == "token_classification":
        tagged = lambda side: (pair[side] for pair in _tagged(cfg, split, tokenizer, ids))  # noqa: E731
        made = [(words, tagged(0)), (len(classes) + 1, tagged(1))]
    else:
        made = [(words, documents(tokenizer, split.side(0), data.path, **special))]
    if kind == "sequence_classification":
        labels = ((np.array([_class(cfg, ids, n)]), 0) for n in split.side(1))
        made.append((len(classes), labels))
    if kind == "seq2seq":
        where = data.target_path or data.path
        targets = documents(tokenizer, split.side(1), where, add_bos=True, add_eos=True)
        made.append((words, targets))
    return [
        open_cache(workdir, name, size, docs)
        for name, (size, docs) in zip(names, made, strict=True)
    ]


def _tagged(
    cfg: RunConfig, split: Split, tokenizer: Tokenizer, ids: dict[str, int]
) -> Iterator[tuple[Document, Document]]:
    """Tokens of each text, and for the last token of each word its class + 1, 0 for the others."""
    data, before = cfg.data, np.array([tokenizer.bos_id] * cfg.data.add_bos, np.int32)
    after = np.array([tokenizer.eos_id] * cfg.data.add_eos, np.int32)
    for text, classes in split:
        words, labels = text.split(), _labels(cfg, classes)
        if len(words) != len(labels):
            what = f"has {len(labels)} classes for the {len(words)} words of {text[:40]!r}"
            raise UserError(data.path, what, "give one for each word, separated by spaces")
        spaced = [word if i == 0 else f" {word}" for i, word in enumerate(words)]
        parts = encode(tokenizer, spaced, data.path)
        marks = []
        for part, word, label in zip(parts, words, labels, strict=True):
            if not len(part):
                what, mend = f"holds {word!r}, which has no tokens", "leave it out"
                raise UserError(data.path, what, mend)
            marks.append(np.append(np.zeros(len(part) - 1), _class(cfg, ids, label) + 1))
        tokens = np.concatenate([before, *parts, after]).astype(np.int32)
        zeros = np.zeros(len(before)), np.zeros(len(after))
        yield (tokens, 0), (np.concatenate([zeros[0], *marks, zeros[1]]).astype(np.int32), 0)


def _labels(cfg: RunConfig, text: str) -> list[str]:
    return text.split() if cfg.objective.kind == "token_classification" else [text.strip()]


def _class(cfg: RunConfig, ids: dict[str, int], name: str) -> int:
    name = name.strip()
    if name not in ids:
        what = f"has the class {name!r}, none of the {len(ids)} that are trained on"
        where = cfg.data.validation_path or cfg.data.path
        raise UserError(where, what, "leave it out, or train on it in a new workdir")
    return ids[name]


def _rows(cfg: RunConfig, caches: list[TokenCache], is_train: bool) -> RowSource:
    data, (first, second) = cfg.data, caches
    if cfg.objective.has_pairs:
        lengths = data.length, data.target_length or data.length
        seed = cfg.data_seed if is_train else None
        return PairRows(first, second, lengths, data.pack, seed, data.add_eos)
    return LabelledRows(first, second, data.length, cfg.objective.kind, data.add_eos)
