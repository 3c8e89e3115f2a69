"""The figure of a sweep: a metric by length, an arm a colour, a panel a task.

Every run is a thin line (dotted where it failed in distribution), the mean over runs a thick one
with markers, the 95 % interval a band; a line marks the longest training length and grey the
lengths up to it. Colours are Okabe and Ito's; markers differ as well, and lines after seven arms.
"""

import io
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from jaxformer.evaluation.report import LINES, MARKERS, MAX_TICKS, PALETTE
from jaxformer.experiments.formats import title_of
from jaxformer.experiments.study import IN_PERCENT, Arm, Run, Task, interval, mean

INK, PAPER = "#1c1c1c", "#fefefe"  # index.html finds and replaces these two
DOUBLING = 1.45  # lengths that grow by this factor or more from one to the next: a log axis
ACROSS = 2  # panels side by side
CROWD = 6  # arms from which on runs and bands are fainter
WIDTH, HEIGHT, LEGEND = 5.6, 3.6, 0.085  # inches of a panel, and of a letter of the legend
STYLE: Any = {
    "svg.hashsalt": "jaxformer",  # equal results give an equal file
    "svg.fonttype": "path",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
}


def draw(
    tasks: Sequence[Task],
    metric: str,
    *,
    length_name: str,
    trained_up_to: Sequence[int],
    stamp: str = "",
) -> Figure:
    """Draws the metric (of each task its headline where '') over length, one panel a task.

    `trained_up_to` are the longest lengths in training, more than one where arms differ in it;
    `stamp` is printed across the top.
    """
    shown = [(task, metric or task.headline) for task in tasks if task.lengths]
    names = list(dict.fromkeys(arm.name for task, _ in shown for arm in task.arms))
    looks = {name: _look(index) for index, name in enumerate(names)}
    across = min(ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    handles = _handles(shown, looks, trained_up_to)
    longest = max(len(str(handle.get_label())) for handle in handles)
    legend = 0.9 + LEGEND * longest
    height = max(HEIGHT * down, 0.24 * len(handles) + 0.4) + (0.3 if stamp else 0)
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * across + legend, height), layout="constrained", facecolor=PAPER)
        FigureCanvasAgg(figure)
        panels = figure.subplots(down, across, squeeze=False).flatten()
        for axes in panels[len(shown) :]:
            axes.remove()
        for axes, (task, name) in zip(panels, shown, strict=False):
            axes.set_facecolor(PAPER)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color=INK, alpha=0.15, linewidth=0.6)
            if len(task.lengths) > 1:
                _over_lengths(axes, task, name, looks, trained_up_to)
                axes.set_xlabel(length_name)
            else:
                _one_length(axes, task, name, looks)
                axes.set_xlabel(f"{length_name}: {min(task.lengths)}")
            unit = " (%)" if name in IN_PERCENT else ""
            axes.set_ylabel(f"{title_of(name).split(' (')[0]}{unit}")
            if len(shown) > 1:
                axes.set_title(task.name)
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
        if stamp:
            figure.suptitle(stamp, color="#D55E00", fontsize=10, fontweight="bold")
    return figure


def save(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """The figure as a file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    no_date = {"Date": None, "Creator": "jaxformer"}
    metadata: Any = no_date if kind == "svg" else {"Software": "jaxformer"}
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _look(index: int) -> dict[str, Any]:
    turn = index // len(PALETTE)
    color = PALETTE[index % len(PALETTE)]
    return {
        "color": INK if color == "#000000" else color,
        "marker": MARKERS[(index + turn) % len(MARKERS)],
        "linestyle": LINES[turn % len(LINES)],
    }


def _scale(metric: str) -> float:
    return 100.0 if metric in IN_PERCENT else 1.0


def _curve(arm: Arm, metric: str, run: Run, lengths: Sequence[int]) -> tuple[list, list]:
    """Lengths and values of one run, without what is missing or not finite."""
    points = arm.by_length.get(metric, {}).get(run, {})
    known = [n for n in lengths if n in points and math.isfinite(points[n].value)]
    return known, [_scale(metric) * points[n].value for n in known]


def _over_lengths(
    axes: Any, task: Task, metric: str, looks: dict[str, dict], trained: Sequence[int]
) -> None:
    scale = _scale(metric)
    faint = 0.5 if len(task.arms) > CROWD else 1.0
    for order, arm in enumerate(task.arms):
        look = looks[arm.name]
        for run in arm.runs if len(arm.runs) > 1 else ():
            line = ":" if run in arm.failed else "-"
            axes.plot(
                *_curve(arm, metric, run, task.lengths),
                color=look["color"],
                linestyle=line,
                linewidth=0.8,
                alpha=0.45 * faint,
                zorder=2,
            )
        lengths, means, lows, highs = [], [], [], []
        for n in task.lengths:
            points = [[p] for p in arm.at(metric, n, arm.runs)]
            if not all(math.isfinite(p.value) for [p] in points) or not points:
                continue  # no mean, as in the table
            value = mean(points)
            low, high = interval(points)
            lengths.append(n)
            means.append(scale * value)
            lows.append(scale * (value if math.isnan(low) else low))
            highs.append(scale * (value if math.isnan(high) else high))
        axes.fill_between(
            lengths, lows, highs, color=look["color"], alpha=0.14 * faint, linewidth=0, zorder=1
        )
        axes.plot(lengths, means, **look, linewidth=2.2, markersize=5, zorder=3 + 0.01 * order)
    _length_axis(axes, task.lengths)
    _mark_training(axes, task.lengths, trained)
    _value_axis(axes, metric)


def _one_length(axes: Any, task: Task, metric: str, looks: dict[str, dict]) -> None:
    """Arms side by side: every run a small point, the mean a large one with its interval."""
    scale, [length] = _scale(metric), task.lengths
    for place, arm in enumerate(task.arms):
        look = looks[arm.name] | {"linestyle": "none"}
        points = arm.at(metric, length, arm.runs)
        values = [scale * p.value for p in points]
        if len(values) > 1:
            spread = place + 0.12 + 0.2 * np.linspace(0, 1, len(values))
            axes.plot(spread, values, **look, markersize=4, alpha=0.5)
        if not all(map(math.isfinite, values)) or not values:
            continue  # no mean, as in the table
        value, ends = np.mean(values), interval([[p] for p in points])
        if not math.isnan(ends.low):
            axes.vlines(place, scale * ends.low, scale * ends.high, color=look["color"], lw=1.6)
        axes.plot([place], [value], **look, markersize=8)
    axes.set_xticks(range(len(task.arms)), [arm.name for arm in task.arms])
    axes.set_xlim(-0.5, len(task.arms) - 0.3)
    if sum(len(arm.name) for arm in task.arms) > 40:
        axes.tick_params(axis="x", rotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    _value_axis(axes, metric)


def _length_axis(axes: Any, lengths: Sequence[int]) -> None:
    """Whole numbers; a log axis where lengths grow by a factor."""
    steps = [b / a for a, b in itertools.pairwise(lengths) if a]
    if lengths[0] > 0 and len(lengths) > 2 and min(steps) >= DOUBLING:
        axes.set_xscale("log", base=2)
    if len(lengths) <= MAX_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _mark_training(axes: Any, lengths: Sequence[int], trained: Sequence[int]) -> None:
    """A dashed line at each longest training length, and grey up to the shortest of them."""
    low, high = axes.get_xlim()
    reached = [n for n in trained if n >= lengths[0]]
    if reached:
        axes.axvspan(low, min(reached), color=INK, alpha=0.07, linewidth=0, zorder=0)
    for n in reached:
        if n <= high:
            axes.axvline(n, color=INK, linestyle=(0, (4, 2)), linewidth=1.2, zorder=2.5)
    axes.set_xlim(low, high)


def _value_axis(axes: Any, metric: str) -> None:
    if metric in IN_PERCENT:
        axes.set_ylim(-3, 103)


def _handles(
    shown: Sequence[tuple[Task, str]], looks: dict[str, dict], trained: Sequence[int]
) -> list[Line2D]:
    """What the legend explains: arms with their failures, then what thin and grey things are."""
    failures: dict[str, list[int]] = {name: [0, 0] for name in looks}
    for task, _ in shown:
        for arm in task.arms:
            failures[arm.name][0] += len(arm.failed)
            failures[arm.name][1] += len(arm.runs)
    over_lengths = any(len(task.lengths) > 1 for task, _ in shown)
    handles = []
    for name, look in looks.items():
        failed, of = failures[name]
        if failed or over_lengths:  # otherwise an arm's name is below it
            label = f"{name} (id_failed {failed}/{of})" if failed else name
            arm = Line2D([], [], **look, linewidth=2.2, markersize=5)
            arm.set_label(_folded(label))
            handles.append(arm)
    several = any(len(arm.runs) > 1 for task, _ in shown for arm in task.arms)
    interval_of = "95 % interval of the mean" if several else "95 % interval"
    if not over_lengths:
        seed = Line2D([], [], color=INK, alpha=0.5, ls="none", marker="o", ms=4, label="one seed")
        middle = Line2D([], [], color=INK, ls="none", marker="o", ms=8, label="mean")
        bar = Line2D([], [], color=INK, lw=1.6, label=interval_of)
        return [*handles, *([middle, seed] if several else []), bar]
    thin = {"color": INK, "linewidth": 0.8, "alpha": 0.6}
    if several:
        handles.append(Line2D([], [], **thin, label="one seed"))
        if any(failed for failed, _ in failures.values()):
            handles.append(Line2D([], [], **thin, ls=":", label="… that failed in distribution"))
    handles.append(Line2D([], [], color=INK, alpha=0.2, linewidth=7, label=interval_of))
    if trained:
        dashed = Line2D([], [], color=INK, ls=(0, (4, 2)), lw=1.2)
        dashed.set_label(f"longest in training: {', '.join(map(str, trained))}")
        handles.append(dashed)
    return handles


def _folded(label: str, width: int = 34) -> str:
    """Long names in lines of at most `width`, broken after + and commas."""
    lines, words = [""], label.replace("+", "+\0").replace(", ", ", \0").split("\0")
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("  ")
        lines[-1] += word
    return "\n".join(lines)
