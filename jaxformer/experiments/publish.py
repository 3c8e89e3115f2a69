"""Everything that a sweep shows, from the records on the disk alone: no model, no checkpoint.

results.csv and results.json have all rows, table.md and index.html all tables, plot.svg and
plot.png the headline by length. The same records give the same files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.evaluation import report
from jaxformer.evaluation.lengths import parse_lengths
from jaxformer.evaluation.statistics import interquartile_mean, mean_std
from jaxformer.experiments import figure
from jaxformer.experiments.formats import Table, title_of
from jaxformer.experiments.page import Drawing, Part, make_page
from jaxformer.experiments.protocol import STAMP
from jaxformer.experiments.reference import Reference, find_problem
from jaxformer.experiments.results import Plan, write_rows
from jaxformer.experiments.rows import SHARES, columns
from jaxformer.experiments.study import Task, interval, read_study
from jaxformer.experiments.summary import over_tasks
from jaxformer.experiments.tables import task_tables

DRAWN = (*SHARES, "token_accuracy_tf", "loss", "nll", "loss_last")  # if a task is alone


class Report(NamedTuple):
    """What sweep.py prints, and the files that hold all of it."""

    text: str
    paths: list[Path]


def write_report(out: Path, plan: Plan, reference: Reference | None = None) -> Report:
    """Writes all files of a sweep.

    Raises UserError where published numbers cannot be compared; the files are there without them.
    """
    rows, finished, failed = write_rows(out, plan)
    tasks = read_study(rows, plan.axes)
    problem = find_problem(reference, tasks) if reference is not None else None
    reference = None if problem is not None else reference
    status = f"{finished} of {len(plan.cells)} cells are finished.{_untested(plan, tasks)}"
    stamp = STAMP if any(row["selected_by"] == "ood" for row in rows) else ""
    first = [_failed(failed)] if failed else []
    parts = {task.name: _tables(task, plan, reference) for task in tasks}
    across = over_tasks(tasks)
    paths = [out / "results.csv"]
    written = _json(plan, rows, tasks, status, stamp)
    paths.append(report.write_json(out / "results.json", written))
    everything = _markdown(status, stamp, first, parts, across)
    protocol = "".join(f"- {name}: {value}\n" for name, value in plan.protocol.items())
    document = f"{everything}\n## Protocol\n\n{protocol}" if protocol else everything
    paths.append(report.write_atomic(out / "table.md", document))
    drawn = [task for task in tasks if task.lengths]
    figures: dict[str, list[Drawing]] = {}
    if drawn:
        whole = _draw(drawn, "", plan, stamp)
        for kind in ("svg", "png"):
            path = out / f"plot.{kind}"
            paths.append(report.write_atomic(path, figure.save(whole, kind)))
        alone = len(drawn) == 1
        figures = {task.name: _drawings(task, plan, stamp, alone) for task in drawn}
    sections = [Part("Failed", [], first)] if first else []
    sections += [Part("Over tasks", [], across)] if across else []
    sections += [Part(name, figures.get(name, []), tables) for name, tables in parts.items()]
    title = f"{', '.join(parts) or 'sweep'}: {_axes(plan)}"
    page = make_page(title, status, stamp, sections, plan.protocol, plan.versions)
    paths.append(report.write_atomic(out / "index.html", page))
    if problem is not None:
        raise problem
    main = {name: [table for table in tables if table.main] for name, tables in parts.items()}
    return Report(_markdown(status, stamp, first, main, across), paths)


def _untested(plan: Plan, tasks: Sequence[Task]) -> str:
    """Lengths that were asked for and that no arm was tested at."""
    texts = plan.protocol.get("test lengths", "").split(" | ")
    asked = {n for text in filter(None, texts) for n in parse_lengths(text)}
    missing = sorted(asked.difference(*(task.lengths for task in tasks)))
    if not missing or not tasks:
        return ""
    shown = ", ".join(map(str, missing))
    return f" No tests at {shown}: no such inputs exist, or no arm has positions for them."


def _tables(task: Task, plan: Plan, reference: Reference | None) -> list[Table]:
    sizes = {}
    for arm in task.arms:
        of_arm = {
            cell.num_parameters
            for cell in plan.cells
            if all(cell.arm.get(k, v) == v for k, v in arm.settings.items())
            and cell.task == task.name
        }
        if of_arm and 0 not in of_arm:
            sizes[arm.name] = max(of_arm)
    return task_tables(task, sizes, reference)


def _failed(failed: Sequence[tuple[Any, str]]) -> Table:
    lines = [
        {**cell.arm, "seed": str(cell.seed), "reason": reason or "unknown"}
        for cell, reason in failed
    ]
    return Table("Failed", lines, "The same command tries these again.")


def _markdown(
    status: str,
    stamp: str,
    first: Sequence[Table],
    parts: dict[str, list[Table]],
    across: Sequence[Table],
) -> str:
    text = f"{status}\n" + (f"\n**{stamp}**\n" if stamp else "")
    text += "".join(_section(table) for table in (*first, *across))
    for name, tables in parts.items():
        text += f"\n# {name}\n" if len(parts) > 1 else ""
        text += "".join(_section(table) for table in tables)
    return text


def _section(table: Table) -> str:
    note = f"\n{table.note}\n" if table.note else ""
    return f"\n## {table.title}\n\n{report.markdown(table.lines)}{note}"


def _axes(plan: Plan) -> str:
    return " × ".join(axis.removeprefix("model.") for axis in plan.axes) or "one setting"


def _drawings(task: Task, plan: Plan, stamp: str, alone: bool) -> list[Drawing]:
    """The headline's figure; of a task that is alone also others, folded."""
    others = [m for m in task.metrics if m in DRAWN and m != task.headline] if alone else []
    shown = []
    for metric in [task.headline, *others]:
        svg = figure.save(_draw([task], metric, plan, stamp), "svg").decode()
        shown.append(Drawing(f"Figure: {title_of(metric)} by length", svg, metric == task.headline))
    return shown


def _draw(tasks: Sequence[Task], metric: str, plan: Plan, stamp: str) -> Any:
    names = {task.name for task in tasks}
    trained = {
        cell.trained_up_to
        for cell in plan.cells
        if cell.task in names and cell.trained_up_to is not None
    }
    return figure.draw(
        tasks,
        metric,
        length_name=plan.protocol.get("length", "length"),
        trained_up_to=sorted(trained),
        stamp=stamp.partition(":")[0],
    )


def _json(
    plan: Plan, rows: Sequence[dict[str, Any]], tasks: Sequence[Task], status: str, stamp: str
) -> dict[str, Any]:
    names = columns(rows, plan.axes)
    return {
        "status": status,
        "stamp": stamp,
        "protocol": plan.protocol,
        "versions": plan.versions,
        "axes": plan.axes,
        "rows": [{name: row[name] for name in names if name in row} for row in rows],
        "by_length": [line for task in tasks for line in _aggregates(task)],
    }


def _aggregates(task: Task) -> list[dict[str, Any]]:
    """Every statistic of every arm, metric and length."""
    found = []
    for arm in task.arms:
        for metric in task.metrics:
            for length in task.lengths:
                if not (points := arm.at(metric, length, arm.runs)):
                    continue
                values = [point.value for point in points]
                low, high = interval([[point] for point in points])
                mean, std = mean_std(values)
                spread = {"mean": mean, "std": std, "min": min(values), "max": max(values)}
                ends = {"iqm": interquartile_mean(values), "low": low, "high": high}
                names = {"task": task.name, "arm": arm.name, "metric": metric, "length": length}
                found.append(names | {"seeds": len(values)} | spread | ends)
    return found
