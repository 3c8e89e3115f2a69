"""Lines of a jsonl file that ask a model for something, and the answers so far."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.columns import json_objects, string_of
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.report import write_atomic
from jaxformer.generation.text import frame_sources
from jaxformer.nn.positions.sources import document_limit


class Line(NamedTuple):
    """A line: where it stands, its `id` (else its number, from 1), its texts by field."""

    where: str
    id: Any
    texts: dict[str, str]


def read_lines(path: Path, fields: Iterable[str], optional: Iterable[str] = ()) -> list[Line]:
    """The lines of a file; UserError names file and line."""
    lines: list[Line] = []
    for where, value in json_objects(path):
        wanted = [*fields, *(field for field in optional if field in value)]
        texts = {field: string_of(where, value, field) for field in wanted}
        lines.append(Line(where, _id(where, value.get("id", len(lines) + 1)), texts))
    if not lines:
        example = ", ".join(f'"{field}": "…"' for field in fields)
        raise UserError(str(path), "is empty", f"give lines like {{{example}}}")
    return lines


def _id(where: str, value: Any) -> Any:
    """An id that can be written again as it was read."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # UnicodeEncodeError is one
        what = "has an id with half a character or a number that is not finite"
        raise UserError(where, what, "give a text or a number")
    return value


def prompt_ids(
    cfg: RunConfig, tokenizer: Tokenizer, lines: Sequence[Line], new: int
) -> list[np.ndarray]:
    """Ids of the prompts or sources, framed as in training, with room for `new` tokens behind.

    UserError names the line of what the tokenizer does not know and of what is too short or long.
    """
    field, (most, limit) = prompt_field(cfg), document_limit(cfg.model)
    both, data = field == "source", cfg.data
    found = []
    for line in lines:
        try:
            texts = [line.texts[field]]
            (ids,) = frame_sources(tokenizer, texts, data.add_bos, both and data.add_eos)
        except UserError as error:
            raise UserError(line.where, error.what, error.mend)
        if not len(ids):
            what = f"has an empty {field}"
            raise UserError(line.where, what, "give it some text: no token comes before")
        if most and len(ids) > (most if both else most - new):
            what = f"has a {field} of {len(ids)} tokens"
            raise UserError(line.where, what, f"{limit} = {most} leaves no room: shorten it")
        check_known(cfg, line.where, ids)
        found.append(ids)
    return found


def check_known(cfg: RunConfig, where: str, ids: np.ndarray) -> None:
    """Raises UserError, which names the line, for ids that the model has no rows for."""
    if ids.max() >= cfg.model.vocab_size:
        what = f"has token {ids.max()}, the model {cfg.model.vocab_size} tokens"
        raise UserError(where, what, "the tokenizer is of another model: bring this one's")


def check_apart(path: Path, written: Path) -> None:
    """Raises UserError where the results would be written over what is asked."""
    if written.exists() and path.exists() and written.samefile(path):
        raise UserError(
            "--out", f"would write over {path}", "name another folder, or move the file"
        )


def prompt_field(cfg: RunConfig) -> str:
    """What a line is to have: a prompt, or of a sequence-to-sequence run a source.

    Raises UserError for a model that generates nothing.
    """
    if cfg.model.architecture == "encoder":
        what = "is encoder, which predicts no next token"
        raise UserError("model.architecture", what, "take a decoder or encoder_decoder")
    return "source" if cfg.objective.has_pairs else "prompt"


def digest(lines: Sequence[Line]) -> str:
    """A hash of what was read, which may have been a pipe."""
    text = json.dumps([(line.id, line.texts) for line in lines])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """Answers of a task that may be cut short, line by line; whoever does the same goes on.

    The first line says what is done: a journal of something else is begun anew.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.done: dict[int, dict[str, Any]] = {}
        self._path, self._settings = path, json.loads(json.dumps(settings))
        first, *others = _whole_lines(path) or [None]
        if first == self._settings:
            self.done = {line["row"]: line["answer"] for line in others}

    def begin(self) -> None:
        """Starts the file, or cuts off what a kill left half-written; for one process."""
        lines = [{"row": row, "answer": answer} for row, answer in self.done.items()]
        write_atomic(self._path, json_lines([self._settings, *lines]))

    def append(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for row, answer in answers.items():
                file.write(_line({"row": row, "answer": dict(answer)}))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def json_lines(values: Iterable[Mapping[str, Any]]) -> str:
    """A jsonl file of objects."""
    return "".join(map(_line, values))


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _whole_lines(path: Path) -> list[Any]:
    """Values of the lines up to the first that is not whole."""
    values: list[Any] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        if not line.endswith(b"\n"):
            break
        try:
            values.append(json.loads(line))
        except ValueError:
            break
    return values
