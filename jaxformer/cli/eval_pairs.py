"""eval.py --pairs: minimal pairs."""

from pathlib import Path

from jaxformer.cli.eval_results import (
    is_published,
    progress,
    results_folder,
    tell_start,
    write_results,
)
from jaxformer.command import FLAGS
from jaxformer.evaluation import report
from jaxformer.evaluation.pairs import pair_records, pair_table, read_pairs, score_pairs
from jaxformer.evaluation.schemes import Scheme, make_variant
from jaxformer.evaluation.texts import make_reader
from jaxformer.run import Run


def main(run: Run, schemes: tuple[Scheme, ...]) -> int:
    """Writes pairs.csv, .json and .md: accuracy by file, under each scheme."""
    cfg = run.config
    reader = make_reader(cfg, run.tokenizer, published=is_published())
    files = read_pairs(Path(FLAGS.pairs).expanduser(), reader)
    variants = [make_variant(scheme, run.model, cfg) for scheme in schemes]
    out, told = results_folder(), reader.describe() | {"pairs": FLAGS.pairs, "ties": "are wrong"}
    tell_start(told["start"])
    rows, shown = [], {}
    how = {"batch_size": FLAGS.batch_size or cfg.eval.batch_size}
    with progress(len(files) * len(variants), 1, "file") as bar:
        for variant in variants:
            found = []
            for one in score_pairs(
                variant.model, files, **how, prefix=cfg.objective.kind == "prefix_lm"
            ):
                found.append(one)
                bar.update(len(rows) + len(found), {})
            records = pair_records(found)
            under = f", positions {variant.name}" if len(variants) > 1 else ""
            title = f"Minimal pairs, step {run.step}{under}"
            shown[title] = report.markdown(pair_table(records))
            rows += [{"positions": variant.name} | row for row in records]
    return write_results(out, "pairs", run, told, rows, shown)
