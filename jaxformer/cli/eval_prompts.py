"""eval.py --prompts: every line of a jsonl file continued, or answered, into another."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxformer.cli.eval_prompt import one_variant, sampler_of
from jaxformer.cli.eval_results import progress, results_folder, write_results
from jaxformer.command import FLAGS
from jaxformer.distributed import is_first, say, together
from jaxformer.evaluation import report
from jaxformer.evaluation.asked import (
    Journal,
    Line,
    check_apart,
    digest,
    json_lines,
    prompt_field,
    prompt_ids,
    read_lines,
)
from jaxformer.evaluation.schemes import Scheme
from jaxformer.evaluation.statistics import ratio, wilson
from jaxformer.evaluation.translation import TITLES, describe_signatures, text_metrics
from jaxformer.generation.batches import generate_batches
from jaxformer.run import Run
from jaxformer.training.chain import model_digest


def main(run: Run, schemes: tuple[Scheme, ...]) -> int:
    """Writes generated.jsonl, a line for each line, and generated.csv, .json and .md about them.

    What was answered before a kill is kept in generated.partial.jsonl and not computed again.
    """
    cfg, path = run.config, Path(FLAGS.prompts).expanduser()
    lines = read_lines(path, [prompt_field(cfg)], ["reference"])
    prompts = prompt_ids(cfg, run.tokenizer, lines, new=1)
    sampler, sampler_text = sampler_of(run)
    model, out = one_variant(run, schemes), results_folder()
    check_apart(path, out / "generated.jsonl")
    told = {
        "prompts": FLAGS.prompts,
        "sampler": sampler_text,
        "seed": FLAGS.seed,
        "max_new_tokens": FLAGS.max_new_tokens,
        "repetition_penalty": FLAGS.repetition_penalty,
        "positions": schemes[0].name,
    }
    settings = told | {"digest": digest(lines), "parameters": model_digest(run.model)}
    settings |= {"compute_dtype": cfg.compute_dtype}
    with together():  # all have read it before one writes
        journal = Journal(out / "generated.partial.jsonl", settings)
    with together():
        if is_first():
            journal.begin()
    if journal.done:
        say(f"{len(journal.done)} of {len(lines)} lines are done already: going on")
    left = [row for row in range(len(lines)) if row not in journal.done]
    answers, tokens, seconds, batches = dict(journal.done), 0, 0.0, 0
    batch_size = FLAGS.batch_size or cfg.eval.batch_size
    start = time.perf_counter()
    with progress(-(-len(left) // batch_size), 10, "batch") as bar:
        for rows, outputs in generate_batches(
            model,
            run.tokenizer,
            prompts,
            left,
            max_new_tokens=FLAGS.max_new_tokens,
            sampler=sampler,
            key=jax.random.key(FLAGS.seed),
            batch_size=batch_size,
            prefix=cfg.objective.kind == "prefix_lm",
            repetition_penalty=FLAGS.repetition_penalty,
        ):
            new = {row: one._asdict() for row, one in zip(rows, outputs, strict=True)}
            answers |= new
            tokens += sum(one.num_tokens for one in outputs)
            seconds, batches = time.perf_counter() - start, batches + 1
            if is_first():
                journal.append(new)
            bar.update(batches, {"tokens_per_second": tokens / seconds})
    done = [answers[row] for row in range(len(lines))]
    rows, shown = _summarise(lines, done, tokens, seconds)
    if is_first():
        _write(out / "generated.jsonl", lines, done, prompt_field(cfg))
    status = write_results(out, "generated", run, told, rows, shown)
    if is_first():
        journal.remove()
    return status


def _write(
    path: Path, lines: Sequence[Line], answers: Sequence[Mapping[str, Any]], field: str
) -> None:
    objects = [
        {"id": line.id, field: line.texts[field], "output": answer["text"]}
        | {name: answer[name] for name in ("num_tokens", "logprob", "ended")}
        | {name: text for name, text in line.texts.items() if name == "reference"}
        for line, answer in zip(lines, answers, strict=True)
    ]
    report.write_atomic(path, json_lines(objects))


def _summarise(
    lines: Sequence[Line], answers: Sequence[Mapping[str, Any]], tokens: int, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows of generated.csv, and the table; metrics of the lines that have a reference."""
    both = [
        (answer["text"].strip(), line.texts["reference"].strip())
        for line, answer in zip(lines, answers, strict=True)
        if "reference" in line.texts
    ]
    ended = sum(answer["ended"] for answer in answers)
    rows: list[dict[str, Any]] = []

    def add(metric: str, value: float, weight: int, low: Any = "", high: Any = "") -> None:
        names = ("metric", "value", "low", "high", "weight")
        rows.append(dict(zip(names, (metric, value, low, high, weight), strict=True)))

    add("ended", ratio(ended, len(answers)), len(answers))
    if tokens:
        add("tokens_per_second", tokens / seconds, tokens)
    note = ""
    if both:
        texts, references = map(list, zip(*both, strict=True))
        right = sum(text == reference for text, reference in both)
        add("exact_match", right / len(both), len(both), *wilson(right, len(both)))
        found = text_metrics(texts, references)
        for name, (score, _) in found.items():
            add(name, score, len(both))
        note = describe_signatures({name: signature for name, (_, signature) in found.items()})
    of = {"tokens_per_second": "new tokens, compilation included"}
    table = [
        {
            "metric": TITLES.get(row["metric"], row["metric"].replace("_", " ")),
            "value": row["value"],
            "of": f"{row['weight']:,} {of.get(row['metric'], 'texts')}",
        }
        for row in rows
    ]
    return rows, {f"Generated: {len(lines):,} texts": report.markdown(table) + note}
