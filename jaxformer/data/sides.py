"""Both sides of examples as token ids: source and target text, or text and classes."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.cache import Document
from jaxformer.data.columns import Row
from jaxformer.data.tokenise import documents, encode
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError


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


def find_classes(cfg: RunConfig, train: list[Split]) -> tuple[str, ...]:
    """The names in the training examples, sorted; numbers by their value."""
    texts = itertools.chain.from_iterable(split.side(1) for split in train)
    labels = (label for text in texts for label in _labels(cfg, text))
    classes = set(labels)
    if len(classes) < 2:
        what = f"has {len(classes)} class in column {cfg.data.label_field or 'label'!r}"
        raise UserError(cfg.data.name, what, "give examples of two classes or more")
    if all(name.isdecimal() and name.isascii() for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return tuple(sorted(classes))


def tokenised_sides(
    cfg: RunConfig, split: Split, tokenizer: Tokenizer, classes: tuple[str, ...]
) -> list[tuple[int, Iterable[Document]]]:
    """(number of ids, documents) of each side; classes are ids as well."""
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
    return made


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
