"""Published numbers beside ours: --compare=NAME, or --compare=FILE.csv, and :TASK where needed.

A reference is a csv file with a header; lines that start with # are its source and remarks.

    arm      required: an arm of ours, such as rope, or a value that one of its axes has
    length   required, a whole number
    mean     required: of the sweep's headline, a share from 0 to 1 where that is one
    task     of which it is; without this column the numbers are for any task
    std      over seeds, for the tolerance below
    seeds    how many

NAME is a file of configs/references. Ours is within a published number where the difference of
means is at most .10 or three published standard deviations, whichever is more.
"""

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxformer.errors import UserError
from jaxformer.evaluation.statistics import rank_correlation
from jaxformer.experiments.cells import Cell
from jaxformer.experiments.formats import Line, Table, number, title_of
from jaxformer.experiments.rows import OOD
from jaxformer.experiments.study import IN_PERCENT, Arm, Task, mean, short

FOLDER = Path(__file__).parents[2] / "configs" / "references"
REQUIRED, OPTIONAL = ("arm", "length", "mean"), ("task", "std", "seeds")
TOLERANCE, DEVIATIONS = 0.10, 3
FEW_ARMS = 3  # below, an order is no order


@dataclasses.dataclass(frozen=True)
class Published:
    """A published mean of one arm at one length; std is nan and seeds 0 where not given."""

    task: str
    arm: str
    length: int
    mean: float
    std: float
    seeds: int


@dataclasses.dataclass(frozen=True)
class Reference:
    """A file of published numbers; `task` is the one that was asked for, '' for ours by name."""

    name: str
    remarks: str
    rows: tuple[Published, ...]
    task: str

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row.task for row in self.rows))

    def of(self, task: str) -> list[Published]:
        """The numbers for a task of ours."""
        wanted = self.task or task
        return [row for row in self.rows if row.task in (wanted, "")]


def read_reference(given: str) -> Reference:
    """Reads NAME, NAME:TASK, FILE.csv or FILE.csv:TASK. Raises UserError."""
    name, task = given, ""
    if not Path(given).exists() and ":" in given:
        name, task = given.rsplit(":", 1)
    path = Path(name) if name.endswith(".csv") else FOLDER / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.csv")))
        raise UserError("--compare", f"finds no file {path}", f"give a csv file or one of {known}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "give a csv file") from error
    remarks = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    reader = csv.DictReader(line for line in lines if line.strip() and not line.startswith("#"))
    columns = reader.fieldnames or ()
    if missing := [column for column in REQUIRED if column not in columns]:
        mend = f"it takes {', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}"
        raise UserError(str(path), f"has no column {missing[0]}", mend)
    rows = tuple(_published(path, number, row) for number, row in enumerate(reader, 1))
    if not rows:
        raise UserError(str(path), "has no rows", "give at least one")
    reference = Reference(path.stem, remarks, rows, task)
    if task and task not in reference.tasks:
        mend = f"choose from {', '.join(filter(None, reference.tasks)) or 'none: leave it out'}"
        raise UserError("--compare", f"asks for task {task!r}, which {path.name} lacks", mend)
    return reference


def check_reference(reference: Reference, cells: Sequence[Cell]) -> None:
    """Raises UserError where nothing of the sweep can be compared, before it is trained."""
    for cell in cells:
        if rows := reference.of(cell.task):
            if _match(list(cell.arm.values()), {row.arm for row in rows}):
                return
    file, tasks = reference.name, list(dict.fromkeys(cell.task for cell in cells))
    if not any(reference.of(task) for task in tasks):
        known = ", ".join(filter(None, reference.tasks))
        mend = (
            f"say which of its tasks, as in --compare={file}:{reference.tasks[0]}; it has {known}"
        )
        raise UserError("--compare", f"finds no task {', '.join(tasks)} in {file}", mend)
    arms = ", ".join(dict.fromkeys(row.arm for row in reference.rows))
    raise UserError("--compare", f"finds none of the arms in {file}", f"it has {arms}")


def find_problem(reference: Reference, tasks: Sequence[Task]) -> UserError | None:
    """What is wrong with means in per cent, or else no share, of a task that counts shares."""
    for task in tasks:
        for row in reference.of(task.name):
            if task.is_share and not 0 <= row.mean <= 1:
                what = f"has mean {row.mean:g} at length {row.length}"
                mend = f"{task.headline} is a share: give 0 to 1"
                return UserError(f"--compare {reference.name}", what, mend)
    return None


def compare_tables(reference: Reference, task: Task) -> list[Table]:
    """Ours beside theirs: over the lengths that both have beyond training, and length by length."""
    published = {(row.arm, row.length): row for row in reference.of(task.name)}
    known = {row.arm for row in reference.of(task.name)}
    matched = {arm.name: (arm, theirs) for arm in task.arms if (theirs := _matched(arm, known))}
    lines, ours, theirs = [], [], []
    for arm, name in matched.values():
        both = [
            n for n in task.lengths if (name, n) in published and arm.at(task.headline, n, arm.runs)
        ]
        beyond = [n for n in both if task.buckets[n] == OOD] or both
        if not both:
            continue
        means = [mean([arm.at(task.headline, n, arm.runs)]) for n in beyond]
        ours.append(sum(means) / len(beyond))
        theirs.append(sum(published[name, n].mean for n in beyond) / len(beyond))
        line = {"arm": arm.name, "published as": name, "lengths": _named(beyond)}
        lines.append(line | _beside(task.headline, ours[-1], theirs[-1]))
    of = f"{reference.name}{f', {reference.task}' if reference.task else ''}"
    title = f"Beside {of}: {title_of(task.headline)}"
    if matched and not lines:
        theirs_have = _named(sorted({length for _, length in published}))
        line = {"lengths tested": _named(task.lengths), "lengths published": theirs_have}
        return [Table(title, [line], "No length is in both: test some with --lengths.")]
    if not lines:
        return []
    note = f"{reference.remarks} Means over the lengths named, beyond training where there are any."
    rho = rank_correlation(ours, theirs) if len(ours) >= FEW_ARMS else math.nan
    if not math.isnan(rho):
        note += f" Rank correlation of the arms (Spearman): {rho:.2f}."
    unit = " (%)" if task.headline in IN_PERCENT else ""
    shown = _each_length(task, matched, published)
    remark = (
        f"Within: the means differ by at most {TOLERANCE:.2f} or {DEVIATIONS} published "
        "deviations, whichever is more."
        if task.is_share
        else ""
    )
    return [
        Table(title + unit, lines, note.strip()),
        Table(f"{title} by length{unit}", shown, remark, main=False),
    ]


def _each_length(
    task: Task, matched: Mapping[str, tuple[Arm, str]], published: Mapping[tuple, Published]
) -> list[Line]:
    metric, lines = task.headline, []
    for arm, name in matched.values():
        for n in task.lengths:
            points = arm.at(metric, n, arm.runs)
            if not points or (name, n) not in published:
                continue
            row, value = published[name, n], mean([points])
            line = {"arm": arm.name, "length": str(n)} | _beside(metric, value, row.mean)
            if not math.isnan(row.std):
                line["published"] += f" ± {number(metric, row.std)}"
            if task.is_share:
                most = max(TOLERANCE, 0.0 if math.isnan(row.std) else DEVIATIONS * row.std)
                line["within"] = "yes" if abs(value - row.mean) <= most + 1e-12 else "no"
            lines.append(line)
    return lines


def _beside(metric: str, ours: float, theirs: float) -> Line:
    scale, digits = (100, 1) if metric in IN_PERCENT else (1, 3)
    return {
        "ours": number(metric, ours),
        "published": number(metric, theirs),
        "difference": f"{scale * (ours - theirs):+.{digits}f}",
    }


def _named(lengths: Sequence[int]) -> str:
    if len(lengths) <= 4:
        return ", ".join(map(str, lengths))
    return f"{lengths[0]} … {lengths[-1]} ({len(lengths)})"


def _matched(arm: Arm, known: set[str]) -> str:
    return _match([arm.name, *arm.settings.values()], known)


def _match(names: Sequence[str], known: set[str]) -> str:
    """The reference's name of an arm: the same text, or the value before what it sets besides."""
    texts = [text for name in names for text in (name, short(name))]
    texts += [name.partition("+")[0] for name in names]
    return next((text for text in texts if text in known), "")


def _published(path: Path, number: int, row: Mapping[str, str | None]) -> Published:
    def read(name: str, kind: type, absent: float) -> float:
        text = (row.get(name) or "").strip()
        if not text and name not in REQUIRED:
            return absent
        try:
            value = kind(text)
            if math.isfinite(value):
                return value
        except ValueError:
            pass
        takes = "a whole number" if kind is int else "a number"
        raise UserError(str(path), f"row {number} has {name} {text!r}", f"it takes {takes}")

    arm = (row.get("arm") or "").strip()
    length, seeds = read("length", int, 0), read("seeds", int, 0)
    values = read("mean", float, math.nan), read("std", float, math.nan)
    return Published((row.get("task") or "").strip(), arm, int(length), *values, int(seeds))
