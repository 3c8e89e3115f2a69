"""What a sweep has on the disk: its plan, a record of each cell, and the rows of all of them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxformer.errors import UserError
from jaxformer.evaluation import report
from jaxformer.experiments import protocol
from jaxformer.experiments.cells import Cell, Job
from jaxformer.experiments.rows import Row, columns, full_row, widened


@dataclasses.dataclass(frozen=True)
class Record:
    """How a cell ended: the rows of its evaluation at a step, or why it failed."""

    step: int
    results: list[Row]
    failed: str = ""
    selected_by: str = "last"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The cells of a sweep and what its tables say of how their numbers came about."""

    cells: Sequence[Cell]
    protocol: Mapping[str, str]
    versions: Mapping[str, str]

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys(name for cell in self.cells for name in cell.arm))


def make_plan(jobs: Sequence[Job], select: str = "last") -> Plan:
    cells = [job.cell for job in jobs]
    return Plan(cells, protocol.describe(jobs, select), protocol.versions())


def write_plan(out: Path, plan: Plan) -> None:
    """Notes which cells the sweep has: `--report` reads them."""
    report.write_json(out / "sweep.json", dataclasses.asdict(plan))


def read_plan(out: Path) -> Plan:
    path = out / "sweep.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        cells = [Cell(**cell) for cell in value["cells"]]
        return Plan(cells, value.get("protocol", {}), value.get("versions", {}))
    except FileNotFoundError:
        raise UserError(str(out), "has no sweep.json", "give the --out of a sweep")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "start the sweep again")


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
        selected = value.get("selected_by", "last")
        record = Record(value["step"], value["results"], value["failed"], selected)
        return record if value["evaluation"] == cell.evaluation else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "delete it to evaluate again")


def read_rows(out: Path, cells: Sequence[Cell]) -> tuple[list[Row], list[tuple[Cell, str]]]:
    """The rows of all cells that are finished, and those that failed with the reason."""
    rows, failed = [], []
    for cell in cells:
        record = read_record(out, cell)
        if record is None:
            continue
        if record.failed:
            failed.append((cell, record.failed))
        rows += _rows(cell, record)
    return rows, failed


def write_rows(out: Path, plan: Plan) -> list[Row]:
    """Writes results.csv from the records on the disk."""
    rows, _ = read_rows(out, plan.cells)
    names = columns(rows, plan.axes)
    report.write_csv(out / "results.csv", [{n: row.get(n, "") for n in names} for row in rows])
    return rows


def _rows(cell: Cell, record: Record) -> list[Row]:
    seeds = {"seed": cell.seed, "data_seed": cell.seed}
    last = {
        "step": record.step,
        "selected_by": record.selected_by,
        "config_hash": cell.name,
    }
    first = {"task": cell.task, **cell.arm, **seeds}
    return [full_row(first, row, cell.trained_up_to, last) for row in widened(record.results)]
