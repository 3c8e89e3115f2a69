"""What a sweep has on the disk: its plan, a record of each cell, and the rows of all of them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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


class Found(NamedTuple):
    """The rows of all cells that came to an end, how many did, and which failed for what reason."""

    rows: list[Row]
    finished: int
    failed: list[tuple[Cell, str]]


def read_rows(out: Path, cells: Sequence[Cell]) -> Found:
    records = [(cell, record) for cell in cells if (record := read_record(out, cell))]
    rows = [row for cell, record in records for row in _rows(cell, record)]
    failed = [(cell, record.failed) for cell, record in records if record.failed]
    return Found(rows, len(records) - len(failed), failed)


def write_rows(out: Path, plan: Plan) -> Found:
    """Writes results.csv from the records on the disk."""
    found = read_rows(out, plan.cells)
    names = columns(found.rows, plan.axes)
    lines = [{name: row.get(name, "") for name in names} for row in found.rows]
    report.write_csv(out / "results.csv", lines)
    return found


def _rows(cell: Cell, record: Record) -> list[Row]:
    data_seed = cell.seed if cell.data_seed is None else cell.data_seed
    seeds = {"seed": cell.seed, "data_seed": data_seed}
    last = {
        "step": record.step,
        "selected_by": record.selected_by,
        "config_hash": cell.name,
    }
    first = {"task": cell.task or "sweep", **cell.arm, **seeds}
    return [full_row(first, row, cell.trained_up_to, last) for row in widened(record.results)]
