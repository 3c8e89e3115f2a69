"""The text of a compiled program as instructions."""

import dataclasses
import math
import re

SIZES = {"pred": 1, "token": 0, "opaque": 0}  # bytes; others have their bits in their name
ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a type; `fast` ones are in on-chip memory, not in HBM."""

    dtype: str
    shape: tuple[int, ...]
    fast: bool

    @property
    def size(self) -> int:
        return int(math.prod(self.shape) * _itemsize(self.dtype))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    arrays: tuple[Array, ...]  # of its result
    operands: tuple[str, ...]
    rest: str  # all attributes, as text
    is_root: bool

    @property
    def size(self) -> int:
        return sum(array.size for array in self.arrays)

    @property
    def source(self) -> str:
        """The operation of the JAX program that it came from."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""


def _itemsize(dtype: str) -> float:
    if dtype in SIZES:
        return SIZES[dtype]
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 0


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """(computation → instructions, the name of the entry)."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", None
    for line in text.splitlines():
        if body is None:
            head = re.match(r"(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$", line)
            if head:
                body = computations[head[2]] = []
                entry = head[2] if head[1] else entry
        elif re.fullmatch(r"\}(, execution_thread=.*)?", line):  # other lines may begin with braces
            body = None
        elif found := re.match(r"\s+(ROOT )?%?([^\s=]+) = (.*)", line):
            body.append(_instruction(found[2], found[3], bool(found[1])))
    if not entry:
        raise ValueError("not the text of an HLO module: it has no ENTRY")
    return computations, entry


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    kind, text = text[:end], text[end:].lstrip()
    start = text.index("(")
    stop = _closing(text, start)
    opcode, inside, rest = text[:start], text[start + 1 : stop], text[stop + 1 :]
    operands = tuple(re.findall(r"%([^\s,()]+)", inside)) or (inside,)
    arrays = tuple(
        Array(dtype, tuple(int(n) for n in sizes.split(",") if n), "S(1)" in layout)
        for dtype, sizes, layout in ARRAY.findall(re.sub(r"/\*.*?\*/", "", kind))
    )
    return Instruction(name, opcode, arrays, operands, rest, is_root)


def _closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError(f"parentheses do not close in {text[:80]!r}")
