"""What every section of a config shares: strict conversion, and checks that name the field."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NoReturn, Self, get_args, get_origin, get_type_hints

from jaxformer.errors import UserError


class Section:
    """A group of fields: strict conversion from and to plain mappings."""

    prefix: ClassVar[str] = ""

    @classmethod
    def from_config_dict(cls, values: Mapping[str, Any]) -> Self:
        """Converts a ConfigDict or the content of a config.json; raises UserError."""
        section = _convert(cls, values, cls.prefix)
        section.check()
        return section

    def check(self) -> None:
        """Raises UserError where fields contradict one another."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]


def _convert(cls: Any, values: Any, prefix: str) -> Any:
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        refuse(prefix or "config", f"is {values!r}", "it is a section with fields of its own")
    values = dict(values.items())
    types = {k: v for k, v in get_type_hints(cls).items() if get_origin(v) is not ClassVar}
    for name in values:
        if name not in types:
            near = difflib.get_close_matches(str(name), types, n=1)
            hint = f"did you mean {_join(prefix, near[0])}?" if near else "see configs/base.py"
            refuse(_join(prefix, name), "is not a field", hint)
    for name in types:
        if name not in values:
            refuse(_join(prefix, name), "is missing", "start from configs/base.py, which has it")
    return cls(**{n: _value(t, values[n], _join(prefix, n)) for n, t in types.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _convert(kind, value, where)
    if get_origin(kind) is tuple:  # tuple[T, ...]; JSON has lists for them
        if not isinstance(value, tuple | list):
            refuse(where, f"is {value!r}", "it takes a sequence")
        return tuple(_value(get_args(kind)[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = [str(c) for c in get_args(kind)]
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            refuse(where, f"is {value!r}", f"{hint}choose from {', '.join(choices)}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        refuse(where, f"is {value!r}", f"it takes a value of type {kind.__name__}")
    if kind is float and not math.isfinite(value):
        refuse(where, f"is {value}", "give a finite number")
    return value


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def refuse(where: str, what: str, mend: str) -> NoReturn:
    raise UserError(where, what, mend)


def _bound(
    prefix: str, section: Any, names: tuple[str, ...], fine: Callable[[Any], bool], mend: str
) -> None:
    for name in names:
        value = getattr(section, name)
        if not fine(value):
            refuse(_join(prefix, name), f"is {value}", mend)


def at_least(prefix: str, section: Any, least: int, *names: str) -> None:
    _bound(prefix, section, names, lambda v: v >= least, f"give {least} or more")


def positive(prefix: str, section: Any, *names: str) -> None:
    _bound(prefix, section, names, lambda v: v > 0, "give a number above 0")


def unread(where: str, value: Any, is_read: bool, reader: str) -> None:
    """Refuses a field that is set (neither 0 nor '') where nothing reads it."""
    if value and not is_read:
        refuse(where, f"is set to {value!r} but never read", f"only {reader} reads it: remove it")
