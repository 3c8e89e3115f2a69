"""Tidy rows: one a cell, split, scheme and length; a column an axis and a column a metric.

Rows come from records of cells, whatever evaluated them: long ones, one a metric, are turned wide
here, wide ones stay. The columns of results.csv, in this order:

    task                 data.source, or what the evaluation calls it
    one a changed field  by its path, such as model.position.kind
    seed, data_seed      of parameters and dropout, and of the examples
    split, positions     what was evaluated, and the test-time scheme
    length, bucket       '' for a whole split; id up to the longest training length, then ood
    n_examples, n_tokens     what a value is over
    exhaustive           whether training had the prompts of this length too, as few exist
    one a metric         exact_match, exact_match_no_eos, …, token_accuracy_tf, nll or loss, …
    step, selected_by    whose parameters: last | id_validation | ood
    config_hash          the cell: cells/HASH has its checkpoints and config.json
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxformer.evaluation.tables import PER_EXAMPLE as SHARES

Row = dict[str, Any]
ID, OOD = "id", "ood"
OF_TOKENS = ("loss", "nll")
BEFORE = ("seed", "data_seed", "split", "positions", "length", "bucket")
COUNTS = ("n_examples", "n_tokens", "exhaustive")
AFTER = ("step", "selected_by", "config_hash")
LONG = ("metric", "value", "low", "high", "weight")


def full_row(first: Row, found: Mapping[str, Any], trained_up_to: int | None, last: Row) -> Row:
    """A measured row with the columns that it lacks; what is no number (JSON's null) is nan."""
    length = found.get("length", "")
    given = {"split": "test", "positions": "trained", "length": length}
    given["bucket"] = bucket_of(length, trained_up_to)
    numbers = {name: math.nan if value is None else value for name, value in found.items()}
    return first | given | last | numbers


def columns(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """The columns of results.csv; counts and metrics that no row has are left out."""
    present = {name: None for row in rows for name in row}
    counts = [name for name in COUNTS if name in present]
    return ["task", *axes, *BEFORE, *counts, *metrics(rows, axes), *AFTER]


def metrics(rows: Iterable[Row], axes: Sequence[str]) -> list[str]:
    """Names of what was measured, in order of first appearance, the shares of examples first."""
    known = {"task", *axes, *BEFORE, *COUNTS, *AFTER}
    names = dict.fromkeys(
        name
        for row in rows
        for name, value in row.items()
        if name not in known and isinstance(value, int | float)
    )
    return sorted(names, key=lambda name: name not in SHARES)


def bucket_of(length: Any, trained_up_to: int | None) -> str:
    """'' of a whole split, and where nobody says how long the training examples were."""
    if length == "" or trained_up_to is None:
        return ""
    return ID if length <= trained_up_to else OOD


def widened(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Joins rows of one metric each that agree in all else."""
    wide: dict[tuple[Any, ...], Row] = {}
    found = []
    for row in results:
        if "metric" not in row:
            found.append(dict(row))
            continue
        names = {name: value for name, value in row.items() if name not in LONG}
        key = tuple(sorted((name, str(value)) for name, value in names.items()))
        if key not in wide:
            wide[key] = names
            found.append(names)
        line, metric = wide[key], row["metric"]
        line[metric] = row["value"]
        if metric in SHARES and row.get("weight"):
            line.setdefault("n_examples", round(row["weight"]))
        if metric in OF_TOKENS and row.get("weight"):
            line.setdefault("n_tokens", round(row["weight"]))
    return found
