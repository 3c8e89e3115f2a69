"""Tables and plots: csv, json, markdown and png, each written whole or not at all.

A table is a list of rows, a row a flat dict; columns come in order of first appearance. Figures
use the Okabe-Ito palette, which stays distinct for colour-blind readers, and one marker a series.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxformer.errors import UserError

Row = Mapping[str, Any]
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
LINES = ("-", "--", ":")  # after seven series the colours come again, with another line
MAX_TICKS = 8  # lengths that are all named on an axis
MAX_INSIDE = 4  # series whose legend stays within the axes


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Writes next to `path`, then renames: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def columns(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """A header, then one line a row; an absent value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_atomic(path, text.getvalue())


def write_json(path: Path, value: Any) -> Path:
    """Strict JSON: a value that is not finite becomes null."""
    return write_atomic(path, json.dumps(_finite(value), indent=2) + "\n")


def write_tables(
    out_dir: Path,
    name: str,
    told: Mapping[str, Any],
    rows: Sequence[Row],
    shown: Mapping[str, str],
    page: str = "",
) -> list[Path]:
    """Long rows as NAME.csv and, with all that is `told` of them, NAME.json; tables as a page.

    It is PAGE.md, or NAME.md.
    """
    document = "\n".join(f"## {title}\n\n{table}" for title, table in shown.items())
    return [
        write_csv(out_dir / f"{name}.csv", rows),
        write_json(out_dir / f"{name}.json", {**told, "results": list(rows)}),
        write_atomic(out_dir / f"{page or name}.md", document),
    ]


def make_directory(out_dir: Path) -> None:
    """Raises UserError where nothing can be written."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(out_dir / ".writable", "").unlink()
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise UserError(str(out_dir), what, "give another --out") from error


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def markdown(rows: Sequence[Row]) -> str:
    """A table for people: four digits, '' where a row has no value, words left, numbers right."""
    names = columns(rows)
    cells = [[_cell(row.get(name, "")) for name in names] for row in rows]
    lefts = [
        all(isinstance(row.get(n, ""), str) and not _numeric(row.get(n)) for row in rows)
        for n in names
    ]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    rules = ["-" * (w - 1) + ("-" if left else ":") for w, left in zip(widths, lefts, strict=True)]
    lines = []
    for line in [names, rules, *cells]:
        padded = [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, lefts, strict=True)
        ]
        lines.append("| " + " | ".join(padded) + " |\n")
    return "".join(lines)


def plot_by_length(
    path: Path,
    series: Mapping[str, Sequence[tuple[float, float, float, float]]],
    *,
    x_label: str,
    y_label: str,
    trained_up_to: float | None,
    log_lengths: bool = False,
) -> Path:
    """Draws lines of (length, value, low, high) with their intervals shaded.

    A dotted line marks the greatest length of the training data. `log_lengths` draws doublings at
    equal distances.
    """
    figure, axes = _figure()
    if len(series) > MAX_INSIDE:
        figure.set_figwidth(figure.get_figwidth() + 1.5)
    for index, (name, points) in enumerate(series.items()):
        lengths, values, lows, highs = zip(*points, strict=True)
        color, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
        line = LINES[index // len(PALETTE) % len(LINES)]
        axes.plot(
            lengths, values, color=color, marker=marker, linestyle=line, markersize=4, label=name
        )
        axes.fill_between(lengths, lows, highs, color=color, alpha=0.15, linewidth=0)
    if trained_up_to is not None:
        label = f"longest in training: {trained_up_to:g}"
        axes.axvline(trained_up_to, color="0.4", linestyle=":", label=label)
    if log_lengths:
        axes.set_xscale("log", base=2)
        ticks = sorted({point[0] for points in series.values() for point in points})
        if len(ticks) <= MAX_TICKS:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlabel=x_label, ylabel=y_label)
    if len(series) > MAX_INSIDE:
        figure.legend(loc="outside right upper")
    else:
        axes.legend()
    return write_atomic(path, _png(figure))


def plot_curves(path: Path, metrics_path: Path, unit: str = "token") -> Path:
    """Draws training and validation loss, and accuracy, by step from a metrics.jsonl.

    `unit` is what has a target: a token, or an example of a classifier.
    """
    records = read_metrics(metrics_path)
    figure, axes = _figure(panels=2)
    for index, (split, name) in enumerate((("train", "training"), ("eval", "validation"))):
        for panel, metric in zip(axes, ("loss", "accuracy"), strict=True):
            points = [
                (r["step"], r[metric]) for r in records if r["split"] == split and metric in r
            ]
            points = [point for point in points if all(isinstance(x, int | float) for x in point)]
            if points:
                marker = "" if split == "train" else MARKERS[index]
                steps, values = zip(*points, strict=True)
                panel.plot(steps, values, color=PALETTE[index], marker=marker, label=name)
    axes[0].set(xlabel="step", ylabel=f"loss (nats per {unit})")
    axes[1].set(xlabel="step", ylabel=f"{unit} accuracy", ylim=(-0.02, 1.02))
    for panel in axes:
        if panel.lines:
            panel.legend()
    return write_atomic(path, _png(figure))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; what a kill cut short, or damage, is left out."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and {"step", "split"} <= values.keys():
            records.append(values)
    return records


def _figure(panels: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.5 * panels, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels)
    for panel in [axes] if panels == 1 else axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": "jaxformer"})
    return buffer.getvalue()


def _numeric(value: Any) -> bool:
    return isinstance(value, str) and value.removeprefix("+").removeprefix("-")[:1].isdigit()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
