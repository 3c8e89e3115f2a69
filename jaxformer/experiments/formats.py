"""How tables and figures name metrics and write numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.evaluation.coverage import UNTRAINED
from jaxformer.experiments.study import IN_PERCENT, Point, Run, mean

Line = dict[str, str]
NONE = "–"
TITLES = {
    "exact_match": "exact match, end token included",
    "exact_match_no_eos": "exact match without the end token",
    "exact_match_oracle_length": "exact match at the right length",
    "token_accuracy_tf": "token accuracy, targets given (no measure of whole answers)",
    "accuracy": "token accuracy, targets given",
    "agreement": "agreement",
    "loss": "loss in nats a token",
    "nll": "loss in nats a token",
    **{name: f"tokens with {what}" for name, what in UNTRAINED.items()},
}


class Table(NamedTuple):
    """A titled table with a remark below; one that is not `main` is folded in index.html."""

    title: str
    lines: list[Line]
    note: str = ""
    main: bool = True


def title_of(metric: str) -> str:
    return TITLES.get(metric, metric.replace("_", " "))


def run_name(run: Run) -> str:
    """Model and data seed, once where they are equal."""
    return str(run[0]) if run[0] == run[1] else f"{run[0]}, data {run[1]}"


def number(metric: str, value: float) -> str:
    """Per cent with one decimal, or three decimals."""
    if not math.isfinite(value):
        return NONE if math.isnan(value) else str(value)
    if metric in IN_PERCENT:
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def bounds(metric: str, low: float, high: float) -> str:
    if math.isnan(low):
        return NONE
    return f"[{number(metric, low)}, {number(metric, high)}]"


def value_of(metric: str, points: Sequence[Point]) -> str:
    value = mean([points])
    return "nan" if math.isnan(value) else number(metric, value)
