"""Evaluates a trained run by a suite, under one or more test-time schemes; writes WORKDIR/eval."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flax import nnx

from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.distributed import together
from jaxformer.evaluation import report, tables
from jaxformer.evaluation.classification import class_counts, class_records, class_table
from jaxformer.evaluation.coverage import describe
from jaxformer.evaluation.evaluators import Total, batch_sums, total_sums
from jaxformer.evaluation.inputs import length_evaluators, named_evaluators, read_inputs
from jaxformer.evaluation.lengths import (
    Examples,
    describe_length,
    evaluate_lengths,
    length_name,
    trained_up_to,
)
from jaxformer.evaluation.samples import sample
from jaxformer.evaluation.schemes import TRAINED, Scheme, Variant, make_variant
from jaxformer.evaluation.statistics import wilson
from jaxformer.evaluation.suite import SuiteConfig
from jaxformer.evaluation.translation import (
    Pairs,
    Translations,
    evaluate_translations,
)
from jaxformer.nn.positions.sources import document_limit


class Run(Protocol):
    """The part of `jaxformer.Run` that evaluation needs."""

    @property
    def model(self) -> nnx.Module: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def step(self) -> int: ...
    @property
    def weights(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What was found: rows of results.csv, tables for people, texts, and where all was written."""

    results: list[dict[str, Any]]
    tables: dict[str, str]
    samples: list[str]
    paths: list[Path]


class Found(NamedTuple):
    """What was measured under one scheme."""

    overall: dict[str, Total]
    by_length: dict[int, Mapping[str, Total]]
    translations: Translations | None
    classes: list[dict[str, Any]]


def evaluate(
    run: Run,
    data: Data,
    suite: SuiteConfig,
    out_dir: Path,
    *,
    lengths: tuple[int, ...] = (),
    schemes: tuple[Scheme, ...] = (TRAINED,),
    metrics_path: Path | None = None,
    by_length: Mapping[int, Mapping[str, Total]] | None = None,
) -> Evaluation:
    """Runs a suite: evaluators on the validation rows and by length, samples, tables, plots.

    All is measured under every scheme; samples are of the first one. `lengths` replaces the suite's
    and must fit the model, while the suite's are cut to what fits. `metrics_path` names the
    metrics.jsonl whose curves are drawn. `by_length` is what was measured before, as trained, at
    the suite's lengths. All input is checked before anything is computed or written; raises
    UserError.
    """
    variants = [make_variant(scheme, run.model, run.config) for scheme in schemes]
    asked, drawn, prompts, pairs = read_inputs(run.config, data, suite, lengths)
    with together():
        report.make_directory(out_dir)
    known = {} if by_length is None else {TRAINED.name: by_length}
    found = {
        v.name: _measure(v, run, data, suite, drawn, pairs, known.get(v.name)) for v in variants
    }
    results = [
        {"split": row["split"], "positions": name} | row
        for name, one in found.items()
        for row in _records(one, data, run.config)
    ]
    texts = sample(variants[0].model, run.config, run.tokenizer, suite, prompts)
    paths = _write(run, out_dir, results, shown := _show(run, found, results, asked), texts)
    for name, one in found.items():
        of = f"_{name.replace(':', '-')}" if len(found) > 1 else ""
        if one.classes:
            paths.append(report.write_csv(out_dir / f"classes{of}.csv", one.classes))
        if one.translations is not None:
            paths.append(one.translations.write(out_dir / f"translations{of}.txt"))
    paths += _plot(run, out_dir, {name: one.by_length for name, one in found.items()})
    if metrics_path is not None and metrics_path.exists():
        unit = run.config.objective.unit
        paths.append(report.plot_curves(out_dir / "curves.png", metrics_path, unit))
    return Evaluation(results, shown, texts, paths)


def _measure(
    variant: Variant,
    run: Run,
    data: Data,
    suite: SuiteConfig,
    drawn: Sequence[Examples],
    pairs: Pairs | None,
    by_length: Mapping[int, Mapping[str, Total]] | None,
) -> Found:
    graphdef, state = nnx.split(variant.model)
    params, cfg = nnx.to_pure_dict(state), variant.config
    on_rows = tuple(e for e in named_evaluators(suite) if not e.needs_task)
    batches = evaluation_batches(data.validation, cfg.eval.batch_size, cfg.eval.max_rows)
    parts = batch_sums(on_rows, graphdef, params, batches) if on_rows else []
    counts = class_counts(parts)
    classes = [] if counts is None else class_records(counts, data.classes)
    if by_length is None:
        evaluators = length_evaluators(run.config, data, suite)
        by_length = evaluate_lengths(evaluators, graphdef, params, drawn, cfg)
    translations = None
    if pairs is not None:
        translations = evaluate_translations(
            variant.model, run.tokenizer, pairs, suite.translation, cfg
        )
    return Found(total_sums(parts), dict(by_length), translations, classes)


def _records(found: Found, data: Data, cfg: RunConfig) -> list[dict[str, Any]]:
    """Rows of results.csv, but for the scheme."""
    loss = found.overall.get("loss")
    is_whole = loss is not None and loss.weight == data.validation.num_tokens
    num_bytes = data.validation.num_bytes if is_whole else 0
    rows = tables.records("validation", None, found.overall, num_bytes)
    for length, totals in found.by_length.items():
        told = describe_length(cfg, length)
        rows += [row | told for row in tables.records("test", length, totals, 0)]
    return rows + (found.translations.records() if found.translations else [])


def _show(
    run: Run,
    found: Mapping[str, Found],
    results: list[dict[str, Any]],
    asked: tuple[int, ...],
) -> dict[str, str]:
    """The tables of table.md by title; several schemes stand side by side in them."""
    shown, cfg, first = {}, run.config, next(iter(found.values()))
    only = next(iter(found)) if len(found) == 1 else ""
    under = f", positions {only}" if only not in ("", TRAINED.name) else ""
    if first.overall:
        table = tables.overall(results, cfg.objective.unit)
        shown[f"Validation, step {run.step}{under}"] = report.markdown(table)
    note = ""
    if left_out := [n for n in asked if n not in first.by_length]:
        most, field = document_limit(cfg.model)
        limits = [f"{field} = {most}"] * bool(most)
        bound = " or ".join(limits + ["the validation text"] * (not cfg.data.is_task))
        reasons = [f"longer than {bound}"] * bool(bound)
        reasons += ["without examples"] * (cfg.data.source == "task")
        note = f"\nLeft out, {' or '.join(reasons)}: {left_out}\n"
    if shared := [n for n in first.by_length if describe_length(cfg, n).get("exhaustive")]:
        note += f"\nExhaustive, so that training had their prompts too: {shared}\n"
    if note and not first.by_length:
        shown[f"By number of {length_name(run.config)}"] = note.lstrip()
    if first.by_length:
        name, trained = length_name(run.config), trained_up_to(cfg)
        if only:
            table = tables.by_length(first.by_length, name, trained)
            note += "".join(f"\n{line}\n" for line in describe(first.by_length))
            shown[f"By number of {name}{under}"] = report.markdown(table) + note
        else:
            by_scheme = {scheme: one.by_length for scheme, one in found.items()}
            for metric, table in tables.by_scheme(by_scheme, name, trained).items():
                shown[f"By number of {name}: {metric}"] = report.markdown(table) + note
    for scheme, one in found.items():
        under = f", positions {scheme}" if scheme != TRAINED.name else ""
        if one.classes:
            table = class_table(one.classes)
            shown[f"Classes, step {run.step}{under}"] = report.markdown(table)
        if one.translations is not None:
            shown[f"Translation, step {run.step}{under}"] = one.translations.table()
    return shown


def _write(
    run: Run,
    out_dir: Path,
    results: list[dict[str, Any]],
    shown: Mapping[str, str],
    texts: list[str],
) -> list[Path]:
    told = {"step": run.step, "weights": run.weights, "compute_dtype": run.config.compute_dtype}
    paths = report.write_tables(out_dir, "results", told, results, shown, page="table")
    if texts:
        is_short = all("\n" not in text for text in texts)
        separator = "\n" if is_short else "\n" + "-" * 80 + "\n"
        paths.append(report.write_atomic(out_dir / "samples.txt", separator.join(texts) + "\n"))
    return paths


def _plot(
    run: Run, out_dir: Path, by_scheme: Mapping[str, Mapping[int, Mapping[str, Total]]]
) -> list[Path]:
    """A figure a metric, a line a scheme."""
    paths, is_task = [], run.config.data.is_task
    for metric, label in tables.DRAWN[is_task].items():
        series = {}
        for scheme, by_length in by_scheme.items():
            points = []
            for length, totals in by_length.items():
                if total := totals.get(metric):
                    is_share = metric in tables.PER_EXAMPLE
                    interval = wilson(total.sum, total.weight) if is_share else [total.mean] * 2
                    points.append((length, total.mean, *interval))
            if points:
                alone = len(by_scheme) == 1 and scheme == TRAINED.name
                model = run.config.model
                kind = "lstm" if model.architecture == "lstm" else model.position.kind
                name = kind if alone else scheme
                series[name] = points
        if series:
            path = report.plot_by_length(
                out_dir / f"{metric}_by_length.png",
                series,
                x_label=f"number of {length_name(run.config)}",
                y_label=label,
                trained_up_to=trained_up_to(run.config),
                log_lengths=not is_task,
            )
            paths.append(path)
    return paths
