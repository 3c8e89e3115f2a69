"""Evaluates a trained run by a suite and writes WORKDIR/eval."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation import report, tables
from jaxformer.evaluation.evaluators import EVALUATORS, Total, evaluate_batches
from jaxformer.evaluation.lengths import (
    LengthExamples,
    draw_lengths,
    evaluate_lengths,
    parse_lengths,
    trained_up_to,
)
from jaxformer.evaluation.statistics import wilson
from jaxformer.evaluation.suite import SuiteConfig
from jaxformer.evaluation.translation import (
    BLEU,
    Pairs,
    check_translates,
    evaluate_translations,
    find_pairs,
)
from jaxformer.generation.generate import generate
from jaxformer.generation.inputs import room
from jaxformer.generation.sampling import parse_sampler
from jaxformer.generation.text import encode_prompts

LENGTH_NAMES = {"agreement": "modifiers"}
FIRST_TOKENS = 8  # of a validation row, as a prompt where there is no other


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


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What was found: rows of results.csv, tables for people, texts, and where all was written."""

    results: list[dict[str, Any]]
    tables: dict[str, str]
    samples: list[str]
    paths: list[Path]


def evaluate(
    run: Run,
    data: Data,
    suite: SuiteConfig,
    out_dir: Path,
    *,
    lengths: tuple[int, ...] = (),
    metrics_path: Path | None = None,
) -> Evaluation:
    """Runs a suite: evaluators on the validation rows and by length, samples, tables, plots.

    `lengths` replaces the suite's and must fit the model, while the suite's are cut to what fits.
    `metrics_path` names the metrics.jsonl whose curves are drawn. All input is checked before
    anything is computed or written; raises UserError.
    """
    asked = lengths or (parse_lengths(suite.lengths) if suite.lengths else ())
    drawn = _draw(run, data, suite, asked, strict=bool(lengths))
    prompts = _prompts(run, data, suite)
    pairs = _pairs(run, data, suite)
    _make_directory(out_dir)
    graphdef, state = nnx.split(run.model)
    params, cfg = nnx.to_pure_dict(state), run.config
    evaluators = tuple(EVALUATORS[name] for name in suite.evaluators if name != BLEU)
    on_rows = tuple(e for e in evaluators if not e.needs_task)
    batches = evaluation_batches(data.validation, cfg.eval.batch_size, cfg.eval.max_rows)
    overall = evaluate_batches(on_rows, graphdef, params, batches) if on_rows else {}
    by_length = evaluate_lengths(evaluators, graphdef, params, drawn, cfg)
    is_whole = "loss" in overall and overall["loss"].weight == data.validation.num_tokens
    num_bytes = data.validation.num_bytes if is_whole else 0
    results = tables.records("validation", None, overall, num_bytes)
    for length, totals in by_length.items():
        results += tables.records("test", length, totals, 0)
    shown = {}
    if overall:
        shown[f"Validation, step {run.step}"] = report.markdown(tables.overall(results))
    if by_length:
        name = LENGTH_NAMES[cfg.data.source]
        table = tables.by_length(by_length, name, trained_up_to(cfg))
        text = report.markdown(table)
        if left_out := [n for n in asked if n not in by_length]:
            bound = f"model.max_length = {cfg.model.max_length}"
            text += f"\nLeft out, longer than {bound}: {left_out}\n"
        shown[f"By number of {name}"] = text
    translations = None
    if pairs is not None:
        translations = evaluate_translations(
            run.model, run.tokenizer, pairs, suite.translation, cfg
        )
        results += translations.records()
        shown[f"Translation, step {run.step}"] = translations.table()
    texts = _sample(run, suite, prompts)
    paths = _write(run, out_dir, results, shown, texts)
    if translations is not None:
        paths.append(translations.write(out_dir / "translations.txt"))
    paths += _plot(run, out_dir, by_length, metrics_path)
    return Evaluation(results, shown, texts, paths)


def _draw(
    run: Run, data: Data, suite: SuiteConfig, lengths: tuple[int, ...], strict: bool
) -> list[LengthExamples]:
    """Test examples by length; refuses what this run's data does not have."""
    if data.task is None:
        source = f"data.source = {run.config.data.source}"
        if lengths:
            mend = "only tasks have lengths: leave them out"
            raise UserError("lengths", f"are given, but {source} is no task", mend)
        for name in suite.evaluators:
            if name != BLEU and EVALUATORS[name].needs_task:
                mend = "choose another suite"
                raise UserError("suite.evaluators", f"has {name}, but {source} is no task", mend)
        return []
    count = suite.num_examples or 1000  # a suite without lengths of its own need not say
    return draw_lengths(
        data.task, run.config, lengths, num_examples=count, seed=suite.seed, strict=strict
    )


def _pairs(run: Run, data: Data, suite: SuiteConfig) -> Pairs | None:
    """What is to be translated, if anything."""
    if BLEU not in suite.evaluators:
        return None
    check_translates(run.config)
    return find_pairs(suite.translation, run.tokenizer, data.validation, run.config.eval.max_rows)


def _prompts(run: Run, data: Data, suite: SuiteConfig) -> tuple[np.ndarray, np.ndarray]:
    """tokens_BP, lengths_B of the texts to continue, each `samples.count` times."""
    add_bos, count = run.config.data.add_bos, suite.samples.count
    if count and run.config.model.architecture != "decoder":
        what = f"is {count} while model.architecture = {run.config.model.architecture}"
        raise UserError("suite.samples.count", what, "only a decoder continues text: set it to 0")
    if suite.samples.prompts:
        tokens_BP, lengths_B = encode_prompts(run.tokenizer, suite.samples.prompts, add_bos=add_bos)
    else:
        row = data.validation.row(0, 0)
        real = min(FIRST_TOKENS, int((row["segment_ids"] == row["segment_ids"][0]).sum()))
        real = room(run.config.model, 1, real)  # one fewer than a learned table holds
        tokens_BP, lengths_B = row["tokens"][None, :real], np.array([real], np.int32)
    for text, length in zip(suite.samples.prompts, lengths_B, strict=False):
        if count and room(run.config.model, int(length), 1) < 1:
            what = f"{text!r} has {length} tokens"
            mend = f"model.max_length = {run.config.model.max_length} leaves no room after it"
            raise UserError("suite.samples.prompts", what, mend)
    return np.repeat(tokens_BP, count, axis=0), np.repeat(lengths_B, count)


def _sample(run: Run, suite: SuiteConfig, prompts: tuple[np.ndarray, np.ndarray]) -> list[str]:
    tokens_BP, lengths_B = prompts
    if not len(lengths_B):
        return []
    out = generate(
        run.model,
        tokens_BP,
        lengths_B,
        max_new_tokens=room(run.config.model, int(lengths_B.max()), suite.samples.max_new_tokens),
        sampler=parse_sampler(suite.samples.sampler),
        key=jax.random.key(suite.seed),
        eos_id=run.tokenizer.eos_id,
        pad_id=run.tokenizer.pad_id,
    )
    rows = zip(tokens_BP, lengths_B, out.tokens, out.lengths, strict=True)
    return [run.tokenizer.decode(np.concatenate([p[:n], t[:m]])) for p, n, t, m in rows]


def _make_directory(out_dir: Path) -> None:
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        report.write_atomic(out_dir / ".writable", "").unlink()
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise UserError(str(out_dir), what, "give another --out") from error


def _write(
    run: Run,
    out_dir: Path,
    results: list[dict[str, Any]],
    shown: Mapping[str, str],
    texts: list[str],
) -> list[Path]:
    document = "\n".join(f"## {title}\n\n{table}" for title, table in shown.items())
    paths = [
        report.write_csv(out_dir / "results.csv", results),
        report.write_json(out_dir / "results.json", {"step": run.step, "results": results}),
        report.write_atomic(out_dir / "table.md", document),
    ]
    if texts:
        is_short = all("\n" not in text for text in texts)
        separator = "\n" if is_short else "\n" + "-" * 80 + "\n"
        paths.append(report.write_atomic(out_dir / "samples.txt", separator.join(texts) + "\n"))
    return paths


def _plot(
    run: Run,
    out_dir: Path,
    by_length: Mapping[int, Mapping[str, Total]],
    metrics_path: Path | None,
) -> list[Path]:
    paths = []
    for metric in tables.PER_EXAMPLE:
        points = []
        for length, totals in by_length.items():
            if metric in totals:
                low, high = wilson(totals[metric].sum, totals[metric].weight)
                points.append((length, totals[metric].mean, low, high))
        if points:
            name = LENGTH_NAMES[run.config.data.source]
            path = report.plot_by_length(
                out_dir / f"{metric}_by_length.png",
                {run.config.model.position.kind: points},
                x_label=f"number of {name}",
                y_label=f"{metric.replace('_', ' ')} (95 % interval)",
                trained_up_to=trained_up_to(run.config),
            )
            paths.append(path)
    if metrics_path is not None and metrics_path.exists():
        paths.append(report.plot_curves(out_dir / "curves.png", metrics_path))
    return paths
