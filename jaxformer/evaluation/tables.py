"""From totals to rows: long ones for results.csv, and tables for people."""

import math
from collections.abc import Mapping
from typing import Any

from jaxformer.evaluation.evaluators import Total
from jaxformer.evaluation.statistics import wilson

ORDER = ("loss", "accuracy", "macro_f1", "exact_match", "agreement")
PER_EXAMPLE = ("exact_match", "agreement")  # of independent examples: these have an interval


def records(
    split: str, length: int | None, totals: Mapping[str, Total], num_bytes: int
) -> list[dict[str, Any]]:
    """Long rows: one a metric. `low` and `high` are Wilson's 95 % interval of a share.

    `num_bytes` is what the evaluated tokens stand for, 0 where that is not known.
    """
    empty = "" if length is None else length
    rows = []

    def add(metric: str, value: float, weight: float, low: Any = "", high: Any = "") -> None:
        names = ("split", "length", "metric", "value", "low", "high", "weight")
        values = (split, empty, metric, value, low, high, weight)
        rows.append(dict(zip(names, values, strict=True)))

    for name, total in sorted(totals.items(), key=lambda item: ORDER.index(item[0])):
        interval = wilson(total.sum, total.weight) if name in PER_EXAMPLE else ()
        add(name, total.mean, total.weight, *interval)
        if name == "loss":
            add("perplexity", math.exp(min(total.mean, 700.0)), total.weight)
            if num_bytes:
                add("bits_per_byte", total.sum / math.log(2) / num_bytes, num_bytes)
    return rows


def overall(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a metric on the validation rows."""
    units = {"loss": "nats per token", "bits_per_byte": "bits per byte"}
    return [
        {
            "metric": r["metric"],
            "value": r["value"],
            "unit": units.get(r["metric"], ""),
            "of": f"{r['weight']:,.0f}",
        }
        for r in results
        if r["split"] == "validation"
    ]


def by_length(
    totals_by_length: Mapping[int, Mapping[str, Total]], name: str, trained: int
) -> list[dict[str, Any]]:
    """One row a length; shares in per cent, with their interval."""
    table = []
    for length, totals in totals_by_length.items():
        row: dict[str, Any] = {name: length, "trained": length <= trained}
        for metric in PER_EXAMPLE:
            if metric in totals:
                low, high = wilson(totals[metric].sum, totals[metric].weight)
                row[f"{metric} %"] = f"{100 * totals[metric].mean:.1f}"
                row[f"{metric} 95 % interval"] = f"{100 * low:.1f} – {100 * high:.1f}"
                row["examples"] = int(totals[metric].weight)
        if "loss" in totals:
            row["perplexity"] = math.exp(min(totals["loss"].mean, 700.0))
            row["token accuracy %"] = f"{100 * totals['accuracy'].mean:.1f}"
        table.append(row)
    return table
