"""The axes of a sweep: --axis=FIELD=VALUE,VALUE…, each value of its field's type."""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

from jaxformer.config import RunConfig
from jaxformer.errors import UserError

CLOSERS = {"(": ")", "[": "]", "{": "}"}
EXTRA = re.compile(r"\+(?=[a-z_][\w.]*=)")  # 'ntk+a.b=1' has one, '1e+5' has none


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value of an axis: the text it was given as, and the fields it sets."""

    text: str
    changes: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Axis:
    """A field and the settings that it takes in turn."""

    field: str
    settings: tuple[Setting, ...]


def parse_axis(text: str) -> Axis:
    """Parses FIELD=VALUE,VALUE…; commas in quotes or brackets do not separate.

    A value may set more fields: t5+model.position.t5.max_distance=32. Values take their field's
    type. Raises UserError.
    """
    field, equals, values = text.partition("=")
    field = field.strip()
    if not equals or not values.strip():
        mend = "write FIELD=VALUE,VALUE, such as model.position.kind=none,rope"
        raise UserError("--axis", f"{text!r} gives no values", mend)
    settings = tuple(_setting(field, value.strip()) for value in _split(values))
    texts = [setting.text for setting in settings]
    if twice := next((t for t in texts if texts.count(t) > 1), None):
        raise UserError(field, f"has {twice!r} twice", "give each value once")
    return Axis(field, settings)


def check_fields(axes: Sequence[Axis]) -> None:
    """Raises UserError where two axes set the same field, or one sets the seed."""
    owner: dict[str, str] = {}
    for axis in axes:
        for path in dict.fromkeys(path for s in axis.settings for path, _ in s.changes):
            if path == "seed":
                raise UserError("--axis", "sets seed", "--seeds says how many follow config.seed")
            if path in owner:
                what = f"sets {path} twice: on {owner[path]} and on {axis.field}"
                raise UserError("--axis", what, "give a field one axis")
            owner[path] = axis.field


def _setting(field: str, text: str) -> Setting:
    first, *extras = EXTRA.split(text)
    changes = [(field, _value(field, first))]
    for extra in extras:
        path, _, value = extra.partition("=")
        if path in dict(changes):
            raise UserError(path, f"is set twice by {text!r}", "set it once")
        changes.append((path, _value(path, value)))
    return Setting(_unquoted(text), tuple(changes))


def _value(path: str, text: str) -> Any:
    """The text as a value of the field's type."""
    kind, text = field_type(path), _unquoted(text)
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if get_origin(kind) is tuple:
            inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
            item = get_args(kind)[0]
            return tuple(item(_unquoted(part.strip())) for part in _split(inner) if part.strip())
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError) as error:
        takes = words.get(kind, "a sequence of such values in brackets")
        raise UserError(path, f"is {text!r}", f"it takes {takes}") from error


def field_type(path: str) -> Any:
    """The type of a config's field by its path. Raises UserError for what is no field."""
    section: Any = RunConfig
    walked: list[str] = []
    for name in path.split("."):
        walked.append(name)
        hints = get_type_hints(section) if dataclasses.is_dataclass(section) else {}
        names = [n for n in hints if n != "prefix"]
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            better = ".".join([*walked[:-1], *near])
            mend = f"did you mean {better}?" if near else "see configs/base.py"
            raise UserError(".".join(walked) or "--axis", "is not a field", mend)
        section = hints[name]
    if dataclasses.is_dataclass(section):
        raise UserError(path, "is a section", "an axis takes one of its fields")
    return section


def _split(text: str) -> list[str]:
    """Splits at commas outside quotes and brackets."""
    parts, closers, quote = [""], [], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in CLOSERS:
            closers.append(CLOSERS[character])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character == "," and not closers:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text
