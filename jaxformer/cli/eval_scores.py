"""eval.py --scores: how probable given continuations or targets are."""

from pathlib import Path

import numpy as np

from jaxformer.cli.eval_prompt import one_variant
from jaxformer.cli.eval_results import progress, results_folder, write_results
from jaxformer.command import FLAGS
from jaxformer.distributed import is_first
from jaxformer.errors import UserError
from jaxformer.evaluation import report
from jaxformer.evaluation.asked import (
    Line,
    check_apart,
    check_known,
    json_lines,
    prompt_field,
    prompt_ids,
    read_lines,
)
from jaxformer.evaluation.schemes import Scheme
from jaxformer.evaluation.statistics import ratio
from jaxformer.generation.scoring import Scores, score_batches
from jaxformer.nn.positions.sources import document_limit
from jaxformer.run import Run

SCORED = {"prompt": "continuation", "source": "target"}


def main(run: Run, schemes: tuple[Scheme, ...]) -> int:
    """Writes scores.jsonl, a line for each line, and scores.csv, .json and .md about all."""
    cfg = run.config
    first = prompt_field(cfg)
    path = Path(FLAGS.scores).expanduser()
    lines = read_lines(path, [first, SCORED[first]])
    prompts = prompt_ids(cfg, run.tokenizer, lines, new=0)
    scored = _continuations(run, lines, prompts, SCORED[first])
    model, out = one_variant(run, schemes), results_folder()
    check_apart(path, out / "scores.jsonl")
    logprobs, tokens, greedy = np.zeros((3, len(lines)))
    batch_size, batches = FLAGS.batch_size or cfg.eval.batch_size, 0
    with progress(-(-len(lines) // batch_size), 10, "batch") as bar:
        for rows, part in score_batches(
            model,
            prompts,
            scored,
            bos_id=run.tokenizer.start_id,
            prefix=cfg.objective.kind == "prefix_lm",
            batch_size=batch_size,
        ):
            logprobs[rows], tokens[rows], greedy[rows] = (
                part.logprobs,
                part.num_tokens,
                part.num_greedy,
            )
            batches += 1
            bar.update(batches, {})
    found = Scores(logprobs, tokens, greedy)
    objects = [
        {"id": line.id, **line.texts}
        | {"logprob": float(found.logprobs[row]), "num_tokens": int(found.num_tokens[row])}
        | {"is_greedy": bool(found.is_greedy[row])}
        for row, line in enumerate(lines)
    ]
    total, number = -float(logprobs.sum()), int(tokens.sum())
    rows = [
        {"metric": "loss", "value": ratio(total, number), "weight": number},
        {"metric": "nats", "value": ratio(total, len(lines)), "weight": len(lines)},
        {"metric": "greedy", "value": float(found.is_greedy.mean()), "weight": len(lines)},
    ]
    names = {"loss": "nats per token", "nats": "nats per line", "greedy": "what greedy gives"}
    table = [
        {"metric": names[row["metric"]], "value": row["value"], "of": f"{row['weight']:,}"}
        for row in rows
    ]
    if is_first():
        report.write_atomic(out / "scores.jsonl", json_lines(objects))
    told = {"scores": FLAGS.scores, "positions": schemes[0].name}
    title = f"Scores of {len(lines):,} {SCORED[first]}s, step {run.step}"
    return write_results(out, "scores", run, told, rows, {title: report.markdown(table)})


def _continuations(
    run: Run, lines: list[Line], prompts: list[np.ndarray], field: str
) -> list[np.ndarray]:
    """Ids of what is scored; a target up to its end. UserError names the line."""
    both = field == "target"
    end = [run.tokenizer.eos_id] if both else []
    (most, limit), found = document_limit(run.config.model), []
    for line, prompt in zip(lines, prompts, strict=True):
        try:
            ids = np.concatenate([run.tokenizer.encode(line.texts[field]), end]).astype(np.int32)
        except UserError as error:
            raise UserError(line.where, error.what, error.mend)
        if not len(ids):
            raise UserError(line.where, f"has an empty {field}", "give it some text")
        length = len(ids) if both else len(prompt) + len(ids) - 1
        if most and length > most:
            what = f"takes {length} tokens to read"
            raise UserError(line.where, what, f"{limit} allows {most}: shorten it")
        check_known(run.config, line.where, ids)
        found.append(ids)
    return found
