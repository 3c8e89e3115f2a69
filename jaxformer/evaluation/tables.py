"""From totals to rows: long ones for results.csv, and tables for people."""

import math
from collections.abc import Mapping
from typing import Any

from jaxformer.evaluation.coverage import UNTRAINED
from jaxformer.evaluation.evaluators import Total
from jaxformer.evaluation.statistics import wilson

MATCHES = {  # of a task; the first is the headline
    "exact_match": "exact match",
    "exact_match_no_eos": "without </s>",
    "exact_match_oracle_length": "at the true length",
}
ORDER = ("loss", "loss_beyond", "loss_last", "accuracy", "macro_f1", *MATCHES, "agreement")
ORDER += ("token_accuracy_tf", "nll")
HEADLINES = ("exact_match", "agreement")
PER_EXAMPLE = (*MATCHES, "agreement")  # of independent examples: these have an interval
ORDER += tuple(UNTRAINED)
LOSSES = {  # in nats per token; the last two of texts only, see windows.py
    "loss": "loss",
    "loss_beyond": "loss beyond trained positions",
    "loss_last": "loss of the same last tokens",
    "nll": "nats per target token",
}
DRAWN = {  # of a task (True) and of a text: metric -> axis of its figure by length
    True: {metric: f"{metric.replace('_', ' ')} (95 % interval)" for metric in HEADLINES},
    False: {
        "loss": "loss (nats per token)",
        "loss_last": "loss of the same last tokens (nats per token)",
    },
}


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


def overall(results: list[dict[str, Any]], unit: str = "token") -> list[dict[str, Any]]:
    """One row a metric on the validation rows, a column a scheme; `unit` is what has a target."""
    units = {"loss": f"nats per {unit}", "bits_per_byte": "bits per byte"}
    rows = [row for row in results if row["split"] == "validation"]
    several = len({row["positions"] for row in rows}) > 1
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        named = table.setdefault(row["metric"], {"metric": row["metric"]})
        named[row["positions"] if several else "value"] = row["value"]
    for row in rows:
        of = f"{row['weight']:,.0f}"
        table[row["metric"]] |= {"unit": units.get(row["metric"], ""), "of": of}
    return list(table.values())


def by_length(
    totals_by_length: Mapping[int, Mapping[str, Total]], name: str, trained: int
) -> list[dict[str, Any]]:
    """One row a length; shares in per cent, with their interval, losses in nats per token."""
    table, new = [], _counted(totals_by_length)
    for length, totals in totals_by_length.items():
        row: dict[str, Any] = {name: length, "trained": length <= trained}
        for metric in HEADLINES:
            if metric in totals:
                low, high = wilson(totals[metric].sum, totals[metric].weight)
                row[f"{metric} %"] = f"{100 * totals[metric].mean:.1f}"
                row[f"{metric} 95 % interval"] = f"{100 * low:.1f} – {100 * high:.1f}"
                row["examples"] = int(totals[metric].weight)
        if "nll" in totals:
            for metric, title in list(MATCHES.items())[1:]:
                row[f"{title} %"] = f"{100 * totals[metric].mean:.1f}"
            row["token accuracy (teacher-forced) %"] = (
                f"{100 * totals['token_accuracy_tf'].mean:.1f}"
            )
            row["nats per token"] = f"{totals['nll'].mean:.4f}"
        if "loss_last" in totals:  # of a text
            row |= {LOSSES[m]: f"{totals[m].mean:.4f}" for m in LOSSES if m in totals}
            row["tokens"] = f"{totals['loss'].weight:,.0f}"
        if "loss" in totals:
            row["perplexity"] = math.exp(min(totals["loss"].mean, 700.0))
            row["token accuracy %"] = f"{100 * totals['accuracy'].mean:.1f}"
        row |= {title: f"{100 * totals[metric].mean:.1f}" for metric, title in new.items()}
        table.append(row)
    return table


def by_scheme(
    by_length: Mapping[str, Mapping[int, Mapping[str, Total]]], name: str, trained: int
) -> dict[str, list[dict[str, Any]]]:
    """A table a metric: one row a length, a column a scheme; shares in per cent."""
    first = next(iter(by_length.values()))
    shares = (*PER_EXAMPLE, "token_accuracy_tf")
    titles = {metric: f"{metric.replace('_', ' ')} %" for metric in shares} | LOSSES
    for lengths in by_length.values():
        titles |= _counted(lengths)
    found = {}
    for metric, title in titles.items():
        scale, digits = (1, 4) if metric in LOSSES else (100, 1)
        table = []
        for length, totals in first.items():
            if metric in totals:
                means = {s: lengths[length][metric].mean for s, lengths in by_length.items()}
                cells = {scheme: f"{scale * mean:.{digits}f}" for scheme, mean in means.items()}
                row = {name: length, "in training": length <= trained}  # 'trained' is a scheme
                table.append(row | cells | {"of": f"{totals[metric].weight:,.0f}"})
        if table:
            found[title] = table
    return found


def _counted(by_length: Mapping[int, Mapping[str, Total]]) -> dict[str, str]:
    """Columns of what evaluation visited and training never did, where anything did."""
    everywhere = [totals for totals in by_length.values() if set(UNTRAINED) <= set(totals)]
    return {
        metric: f"{metric.replace('_', ' ')} %"
        for metric in UNTRAINED
        if any(totals[metric].sum for totals in everywhere)
    }
