"""Draws the losses of several runs side by side: python -m scripts.curves OUT.png NAME=WORKDIR …"""

import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxformer.evaluation.report import read_metrics

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's
SPLITS = {"train": ("training", "-", ""), "eval": ("validation", "--", "o")}


def draw(runs: dict[str, Path]) -> Figure:
    """A line for each run and split, over steps, in nats a token."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.add_subplot()
    for (name, workdir), colour in zip(runs.items(), COLOURS, strict=False):
        lines = read_metrics(workdir / "metrics.jsonl")
        for split, (words, dash, marker) in SPLITS.items():
            points = [(line["step"], line["loss"]) for line in lines if line["split"] == split]
            if points:
                steps, losses = zip(*points, strict=True)
                label = f"{name}, {words}"
                axes.plot(steps, losses, dash, color=colour, marker=marker, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def main(out: str, *named: str) -> None:
    runs = {name: Path(workdir) for name, _, workdir in (text.partition("=") for text in named)}
    FigureCanvasAgg(draw(runs)).print_png(out)
    print(f"written: {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
