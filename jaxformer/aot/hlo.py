"""Reads a compiled program's text: what it moves between chips and memory, loops counted out.

XLA's own cost analysis counts the body of a loop once, so that a scanned layer costs one layer.
Here each computation has a number of runs: that of its caller times the trip count of the loop.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator

from jaxformer.aot.hlo_text import Instruction, parse

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # which operand is written into another
SCATTER = "all-reduce-scatter"  # a fusion's name: of an all-reduce each chip keeps its part
FREE = {  # moves nothing by itself
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id", "iota", "optimization-barrier"),
    *("copy-done", "async-update", "async-done", "add-dependency", "get-dimension-size"),
}
CALLS = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations)=\{?(%[^\s,}]+(?:, ?%[^\s,}]+)*)"
)
TRIPS = re.compile(r'known_trip_count"?:?\s*\{"?n"?:\s*"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind: how many run in a step, and their bytes a chip.

    `bytes` is the size of the arrays that are gathered, reduced or exchanged, `sent` what leaves
    each chip if groups of n pass parts round a ring: (n - 1) / n of it, of an all-reduce twice.
    """

    kind: str
    count: int
    bytes: int
    sent: float


class Program:
    """A compiled module. `runs` says how often each computation runs in one run of the program."""

    def __init__(self, text: str):
        self.computations, self.entry = parse(text)
        counts = re.search(r"^HloModule .*num_partitions=(\d+)", text)
        self.num_devices = int(counts[1]) if counts else 1
        self._names = {
            name: {instruction.name: instruction for instruction in instructions}
            for name, instructions in self.computations.items()
        }
        self._caller: dict[str, str] = {}  # of what is fused: the computation that it runs in
        self.runs, self.fused = self._count()

    def collectives(self) -> list[Collective]:
        """By kind, in the order of COLLECTIVES."""
        found: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
        seen: set[tuple[str, str]] = set()
        for name, instruction, runs in self._everything():
            kind = instruction.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            if name.startswith(SCATTER):
                kind = "reduce-scatter"
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            if name in self.fused and channel:
                # From its start to its end it stands in each fusion that does a part of it.
                one = self._caller[name], channel[1]
                if one in seen:
                    continue
                seen.add(one)
            known = self._names[name]
            size = sum(known[operand].size for operand in instruction.operands if operand in known)
            members = _group_size(instruction.rest, self.num_devices)
            size *= members if kind == "all-gather" else 1
            found[kind].append((runs, runs * size, runs * size * _share(kind, members)))
        return [
            Collective(kind, *(sum(column) for column in zip(*found[kind], strict=True)))
            for kind in COLLECTIVES
            if kind in found
        ]

    def hbm_bytes(self) -> int:
        """Bytes that the instructions of a step read and write in HBM, each for itself.

        A fusion reads of an operand that it only slices, and writes of one that it updates in
        place, no more than that slice.
        """
        total = 0
        for name, instruction, runs in self._everything(fused=False):
            if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
                continue
            total += runs * self._traffic(name, instruction)
        return total

    def largest(self, count: int) -> list[Instruction]:
        """The instructions with the largest results in HBM, parameters and views apart."""
        found = [
            instruction
            for _, instruction, _ in self._everything(fused=False)
            if instruction.opcode not in FREE and not instruction.opcode.endswith("-done")
        ]
        biggest = lambda i: max((a.size for a in i.arrays if not a.fast), default=0)  # noqa: E731
        return sorted(found, key=biggest, reverse=True)[:count]

    def _everything(self, *, fused: bool = True) -> Iterator[tuple[str, Instruction, int]]:
        for name, runs in self.runs.items():
            if fused or name not in self.fused:
                for instruction in self.computations[name]:
                    yield name, instruction, runs

    def _count(self) -> tuple[dict[str, int], set[str]]:
        """(computation → runs, those inside fusions and reductions)."""
        runs: dict[str, int] = defaultdict(int)
        fused: set[str] = set()

        def visit(name: str, times: int, inside: str) -> None:
            runs[name] += times
            if inside:
                fused.add(name)
                self._caller[name] = inside
            for instruction in self.computations[name]:
                for how, names in CALLS.findall(instruction.rest):
                    is_loop = how in ("body", "condition")
                    trips = self._trips(name, instruction) if is_loop else 1
                    of_op = instruction.opcode in (
                        "while",
                        "conditional",
                        "call",
                        "call-start",
                        "async-start",
                    )
                    for called in re.split(", ?", names):
                        within = inside or ("" if of_op else name)
                        visit(called.lstrip("%"), times * trips, within)

        visit(self.entry, 1, "")
        return dict(runs), fused

    def _trips(self, name: str, loop: Instruction) -> int:
        """How often a loop runs: as the compiler notes, else by what its counter is compared with.

        Once where neither is known. JAX's loops count by one.
        """
        if found := TRIPS.search(loop.rest):
            return int(found[1])
        condition = dict(CALLS.findall(loop.rest))["condition"].lstrip("%")
        test = self._root(condition)
        arguments = [self._names[condition][operand] for operand in test.operands]
        if test.opcode == "fusion":
            called = _called(test)
            test = self._root(called)
            given = [self._names[called][operand] for operand in test.operands]
            arguments = [arguments[_number(x)] if x.opcode == "parameter" else x for x in given]
        if test.opcode != "compare" or "direction=LT" not in test.rest:
            return 1
        start, end = (_constant(argument, loop, self._names[name]) for argument in arguments)
        return 1 if end is None else max(0, end - (start or 0))

    def _traffic(self, name: str, instruction: Instruction) -> int:
        known = self._names[name]
        operands = [known[operand] for operand in instruction.operands if operand in known]
        in_hbm = [[a.size for a in operand.arrays if not a.fast] for operand in operands]
        read = [sum(sizes) for sizes in in_hbm]
        results = [array.size for array in instruction.arrays if not array.fast]
        written = sum(results)
        if instruction.opcode.endswith("-start"):  # its operands stand among its results
            written = max(results, default=0)
        if instruction.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * written
        if instruction.opcode in UPDATES:
            return 2 * sum(read[UPDATES[instruction.opcode] :][:1] or [written])
        if instruction.opcode == "fusion":
            called = _called(instruction)
            inside = self._parameters(called)
            taken = [self._taken(called, inside[i]) for i in range(len(operands))]
            read = [r if t is None else min(r, t) for r, t in zip(read, taken, strict=True)]
            parts = self._written(called, self._root(called))
            if len(parts) == len(instruction.arrays):
                pairs = zip(parts, instruction.arrays, strict=True)
                written = sum(min(part, array.size) for part, array in pairs if not array.fast)
        return sum(read) + written

    def _root(self, name: str) -> Instruction:
        return next(i for i in self.computations[name] if i.is_root)

    def _parameters(self, name: str) -> dict[int, str]:
        found = [i for i in self.computations[name] if i.opcode == "parameter"]
        return {_number(parameter): parameter.name for parameter in found}

    def _taken(self, name: str, operand: str) -> int | None:
        """Bytes that a fusion takes of an operand, if slices are all it takes; otherwise None."""
        total = 0
        for user in self.computations[name]:
            places = [place for place, used in enumerate(user.operands) if used == operand]
            if not places or (user.opcode == "tuple" and user.is_root):
                continue
            sizes: list[int | None] = [None]
            if user.opcode in ("dynamic-slice", "slice"):
                sizes = [user.size]
            elif user.opcode == "dynamic-update-slice" and places == [0]:
                sizes = [0]
            elif user.opcode == "bitcast":
                sizes = [self._taken(name, user.name)]
            elif user.opcode == "fusion":
                called = _called(user)
                inside = self._parameters(called)
                sizes = [self._taken(called, inside[place]) for place in places]
            for size in sizes:
                if size is None:
                    return None
                total += size
        return total

    def _written(self, name: str, result: Instruction) -> list[int]:
        """Bytes that each result of a fusion writes: the update of one that is updated in place."""
        known = self._names[name]
        if result.opcode == "tuple":
            return [size for one in result.operands for size in self._written(name, known[one])]
        inner = result
        while inner.opcode in ("bitcast", "convert", "copy") and inner.operands[0] in known:
            inner = known[inner.operands[0]]
        if inner.opcode == "dynamic-update-slice":
            return [known[inner.operands[1]].size]
        if inner.opcode == "fusion" and len(inner.arrays) == 1:
            called = _called(inner)
            return self._written(called, self._root(called))
        return [result.size]


def _called(fusion: Instruction) -> str:
    return CALLS.findall(fusion.rest)[0][1].lstrip("%")


def _number(parameter: Instruction) -> int:
    return int(parameter.operands[0])


def _constant(x: Instruction, loop: Instruction, outside: dict[str, Instruction]) -> int | None:
    """The value of a scalar in a loop's condition at the start, None where it is not written."""
    place = re.search(r"index=(\d+)", x.rest)
    if x.opcode == "get-tuple-element" and place:
        carried = outside.get(loop.operands[0])
        if carried is None or carried.opcode != "tuple":
            return None
        x = outside[carried.operands[int(place[1])]]
        while x.opcode in ("copy", "bitcast"):
            x = outside[x.operands[0]]
    return int(x.operands[0]) if x.opcode == "constant" and x.operands[0].isdecimal() else None


def _group_size(rest: str, num_devices: int) -> int:
    """Members of a collective's groups.

    They are written {{0,1},{2,3}}, [2,4]<=[8], {} (all) or as axes of a mesh, of which one may be
    split in parts, (what is before the part) size: mesh['a'=2,'b'=4] {'a','b':(1)2}. Raises
    ValueError for groups in another notation.
    """
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(found[1])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=mesh\[([^]]*)\][^{]*\{([^}]*)\}", rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    if "source_target_pairs=" in rest or "replica_groups={}" in rest:
        return num_devices
    raise ValueError(f"no groups that can be read in {rest[:200]!r}")


def _share(kind: str, members: int) -> float:
    """Bytes that a member sends for each byte of the whole."""
    if kind in ("collective-permute", "collective-broadcast"):
        return 1.0
    return (2.0 if kind == "all-reduce" else 1.0) * (members - 1) / members
