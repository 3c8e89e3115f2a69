"""What a sweep found: a record of each cell, and results.csv and table.md of all of them."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import UserError
from jaxformer.evaluation import report
from jaxformer.evaluation.statistics import mean_std
from jaxformer.experiments.cells import Cell

Row = dict[str, Any]
MEASURED = ("value", "low", "high", "weight", "bucket", "exhaustive")
OF_RUN = ("seed", "cell", "step")


@dataclasses.dataclass(frozen=True)
class Record:
    """How a cell ended: the rows of its evaluation at its last step, or why it failed."""

    step: int
    results: list[Row]
    failed: str = ""


def folder_of(out: Path, cell: Cell) -> Path:
    return out / "cells" / cell.name


def write_record(out: Path, cell: Cell, record: Record) -> None:
    value = dataclasses.asdict(cell) | dataclasses.asdict(record)
    report.write_json(folder_of(out, cell) / "cell.json", value)


def read_record(out: Path, cell: Cell) -> Record | None:
    """None where the cell has not come to an end yet, or was evaluated by another suite."""
    path = folder_of(out, cell) / "cell.json"
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        record = Record(value["step"], value["results"], value["failed"])
        return record if value["evaluation"] == cell.evaluation else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "delete it to evaluate again")


def write_cells(out: Path, cells: Sequence[Cell]) -> None:
    """Notes which cells the sweep has: `--report` reads them."""
    report.write_json(out / "sweep.json", {"cells": [dataclasses.asdict(cell) for cell in cells]})


def read_cells(out: Path) -> list[Cell]:
    path = out / "sweep.json"
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [Cell(c["arm"], c["seed"], c["name"], c["evaluation"]) for c in cells]
    except FileNotFoundError:
        raise UserError(str(out), "has no sweep.json", "give the --out of a sweep")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "start the sweep again")


def write_report(out: Path, cells: Sequence[Cell]) -> str:
    """Writes results.csv and table.md from the records on the disk; returns the means."""
    records = [(cell, record) for cell in cells if (record := read_record(out, cell))]
    rows = [
        {**cell.arm, "seed": cell.seed, "cell": cell.name, "step": record.step, **row}
        for cell, record in records
        for row in record.results
    ]
    failed = [(cell, record.failed) for cell, record in records if record.failed]
    text = f"{len(records) - len(failed)} of {len(cells)} cells are finished.\n"
    if failed:
        text += "\n## Failed\n\n" + report.markdown(
            [{**cell.arm, "seed": cell.seed, "reason": reason} for cell, reason in failed]
        )
    arms = list(dict.fromkeys(name for cell in cells for name in cell.arm))
    sections = _sections(rows)
    means = text + "".join(f"\n## {t}\n\n{_means(part, arms)}" for t, part in sections.items())
    seeds = "".join(f"\n## {t}: every seed\n\n{_seeds(part, arms)}" for t, part in sections.items())
    report.write_csv(out / "results.csv", rows)
    report.write_atomic(out / "table.md", means + seeds)
    return means


def _sections(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what they measure, such as 'loss, test, by length'."""
    sections: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by = ", by length" if row.get("length", "") != "" else ""
        sections[f"{row['metric']}, {row['split']}{by}"].append(row)
    return dict(sections)


def _means(rows: Sequence[Row], arms: Sequence[str]) -> str:
    """One line an arm, one column a length: mean ± standard deviation over its seeds."""
    table = []
    for line in _lines(rows, [*arms, *_others(rows, arms)]):
        number = {"seeds": len({row["seed"] for row in line["rows"]})}
        shown = {
            length: _mean([_number(row["value"]) for row in of_length])
            for length, of_length in line["lengths"].items()
        }
        table.append(line["names"] | number | shown)
    return report.markdown(_aligned(table, rows))


def _seeds(rows: Sequence[Row], arms: Sequence[str]) -> str:
    """One line an arm and seed, one column a length."""
    table = []
    for line in _lines(rows, [*arms, *_others(rows, arms), "seed"]):
        shown = {n: _mean([_number(row["value"])]) for n, [row] in line["lengths"].items()}
        table.append(line["names"] | shown)
    return report.markdown(_aligned(table, rows))


def _lines(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows grouped by the named columns, and within by length."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row.get(name, "") for name in names)
        new = {"names": dict(zip(names, key, strict=True)), "rows": [], "lengths": {}}
        line = lines.setdefault(key, new)
        line["rows"].append(row)
        line["lengths"].setdefault(_column(row), []).append(row)
    return list(lines.values())


def _others(rows: Sequence[Row], arms: Sequence[str]) -> list[str]:
    """Columns that tell rows of one arm and seed apart, such as the test-time scheme."""
    told = {"metric", "split", "length", *MEASURED, *OF_RUN, *arms}
    names = [name for name in report.columns(rows) if name not in told]
    return [name for name in names if len({row.get(name) for row in rows}) > 1]


def _aligned(table: list[dict[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same with columns of lengths in ascending order, whatever the first line has."""
    lengths = list(dict.fromkeys(_column(row) for row in rows))
    lengths.sort(key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0))
    return [
        {n: v for n, v in line.items() if n not in lengths} | {n: line.get(n, "") for n in lengths}
        for line in table
    ]


def _column(row: Row) -> str:
    length = row.get("length", "")
    return "value" if length == "" else str(length)


def _number(value: float | None) -> float:
    return math.nan if value is None else value  # JSON has no nan


def _mean(values: Sequence[float]) -> str:
    """Four digits of the mean, and as many decimals of the deviation."""
    mean, std = mean_std(values)
    if not math.isfinite(mean):
        return str(mean)
    decimals = 3 - math.floor(math.log10(abs(mean))) if mean else 3
    decimals = min(max(decimals, 0), 6)
    shown = f"{mean:.{decimals}f}"
    return shown if len(values) == 1 else f"{shown} ± {std:.{decimals}f}"
