"""From files to rows of pairs (seq2seq) and of labelled texts (classification).

An example has two sides: source and target text, or text and classes. Each side of each split is
tokenised once into a cache of its own; classes are cached like tokens.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.cache import TokenCache, fingerprint, open_cache
from jaxformer.data.columns import Row, read_parallel, read_rows
from jaxformer.data.mixture import JoinedRows, mix, seed_of
from jaxformer.data.packing import RowSource
from jaxformer.data.places import find_place
from jaxformer.data.rows import LabelledRows, PairRows
from jaxformer.data.sides import Split, find_classes, tokenised_sides
from jaxformer.data.sources import check_apart, files_fingerprint, find_files
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.data.workdir import check_special, saved_classes, saved_tokenizer
from jaxformer.errors import UserError

SIDES = ("first", "second")


@dataclasses.dataclass(frozen=True)
class Source:
    """One source of a run, which `cfg` names in data.path, and the files of each split."""

    cfg: RunConfig
    files: dict[str, tuple[list[Path], list[Path]]]
    content: list[list[str]]

    def names(self, tokenizer: Tokenizer, classes: tuple[str, ...], split: str) -> list[str]:
        """The names of the caches of a split."""
        return _names(self.cfg, self.content, tokenizer, classes, split)


@dataclasses.dataclass(frozen=True)
class Opened:
    """What `open_examples` finds."""

    tokenizer: Tokenizer
    classes: tuple[str, ...]
    train: RowSource
    validation: RowSource


def open_examples(cfg: RunConfig, workdir: Path | None) -> Opened:
    """Opens pairs or labelled texts, tokenised into `workdir`; files are read once. UserError."""
    data, place = cfg.data, find_place(cfg.data, workdir)
    sources = _sources(cfg)
    # Validation files of their own are the same beside each source.
    held_out = sources[:1] if data.validation_path else sources
    parts = [(n, "train") for n in range(len(sources))]
    parts += [(n, "validation") for n in range(len(held_out))]
    tokenizer, classes = saved_tokenizer(data, workdir), saved_classes(workdir)
    found: list[TokenCache | None] = [None]
    if tokenizer is not None and (classes or not cfg.objective.has_labels):
        names = [sources[n].names(tokenizer, classes, split) for n, split in parts]
        found = [place.read(name) for name in itertools.chain.from_iterable(names)]
    caches = [cache for cache in found if cache is not None]
    if tokenizer is None or len(caches) < len(found):
        examples = [_split(source.cfg, source.files) for source in sources]
        tokenizer = tokenizer or _make_tokenizer(cfg, examples)
        check_special(cfg, tokenizer)
        if cfg.objective.has_labels:
            classes = classes or find_classes(cfg, [part["train"] for part in examples])
        caches = []
        for n, split in parts:
            names = sources[n].names(tokenizer, classes, split)
            made = tokenised_sides(sources[n].cfg, examples[n][split], tokenizer, classes)
            caches += [place.open(name, *side) for name, side in zip(names, made, strict=True)]
    sides = list(zip(caches[::2], caches[1::2], strict=True))
    train = [
        _rows(cfg, side, seed_of(cfg.data_seed, n) if len(sources) > 1 else cfg.data_seed)
        for n, side in enumerate(sides[: len(sources)])
    ]
    validation = [_rows(cfg, side, None) for side in sides[len(sources) :]]
    rows = train[0]
    if data.mixture.paths:
        rows = mix(train, data.paths, data.mixture.weights, data.mixture.end, cfg.data_seed)
    joined = validation[0] if len(validation) == 1 else JoinedRows(validation)
    return Opened(tokenizer, classes, rows, joined)


def read_examples(cfg: RunConfig) -> dict[str, list[Row]]:
    """Both texts of every example of 'train' and 'validation', as they are in the files."""
    splits = [_split(source.cfg, source.files) for source in _sources(cfg)]
    return {
        name: [row for part in (splits[:1] if is_shared else splits) for row in part[name]]
        for name, is_shared in (("train", False), ("validation", bool(cfg.data.validation_path)))
    }


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
    made = tokenised_sides(cfg, split, tokenizer, classes)
    caches = [open_cache(None, name, *side) for name, side in zip(names, made, strict=True)]
    return _rows(cfg, caches, None)


def _sources(cfg: RunConfig) -> list[Source]:
    found = []
    for path in cfg.data.paths:
        its = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, path=path))
        files = _find(its.data)
        content = [files_fingerprint([*first, *second]) for first, second in files.values()]
        found.append(Source(its, files, content))
    check_apart([first + second for source in found for first, second in [source.files["train"]]])
    return found


def _find(data: DataConfig) -> dict[str, tuple[list[Path], list[Path]]]:
    """The files of each split that has some of its own."""
    files = {"train": _files(data, data.path, data.target_path)}
    if data.validation_path:
        paths = data.validation_path, data.validation_target_path
        files["validation"] = _files(data, *paths, "data.validation_path")
    return files


def _files(
    data: DataConfig, path: str, target_path: str, field: str = ""
) -> tuple[list[Path], list[Path]]:
    first = find_files(dataclasses.replace(data, path=path), field=field)
    if not target_path:
        return first, []
    of_target = field.replace("path", "target_path") or "data.target_path"
    return first, find_files(dataclasses.replace(data, path=target_path), field=of_target)


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


def _make_tokenizer(cfg: RunConfig, examples: list[dict[str, Split]]) -> Tokenizer:
    """One tokenizer for all sources and both sides of pairs."""
    sides = (0, 1) if cfg.objective.has_pairs else (0,)

    def texts(*splits: str) -> Iterable[str]:
        parts = (part[split] for split in splits for part in examples)
        return (text for part in parts for side in sides for text in part.side(side))

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


def _rows(cfg: RunConfig, caches: Sequence[TokenCache], seed: int | None) -> RowSource:
    """Rows of training, packed in an order drawn from `seed`, or of validation."""
    data, (first, second) = cfg.data, caches
    if cfg.objective.has_pairs:
        lengths = data.length, data.target_length or data.length
        return PairRows(first, second, lengths, data.pack, seed, data.add_eos)
    return LabelledRows(first, second, data.length, cfg.objective.kind, data.add_eos)
