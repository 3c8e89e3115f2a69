"""eval.py --perplexity: a text file in windows."""

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
from jaxformer.evaluation.perplexity import (
    make_cut,
    open_text,
    score_text,
    text_records,
    text_table,
    windows,
)
from jaxformer.evaluation.schemes import Scheme, make_variant
from jaxformer.evaluation.texts import make_reader
from jaxformer.run import Run


def main(run: Run, schemes: tuple[Scheme, ...]) -> int:
    """Writes perplexity.csv, .json and .md: one row a metric and scheme."""
    cfg = run.config
    reader = make_reader(cfg, run.tokenizer, published=is_published())
    cut = make_cut(cfg.model, FLAGS.window, FLAGS.stride, cfg.data.length)
    text = open_text(Path(FLAGS.perplexity).expanduser(), reader)
    variants = [make_variant(scheme, run.model, cfg) for scheme in schemes]
    out = results_folder()
    told = {"text": FLAGS.perplexity, "window": cut.window, "stride": cut.stride}
    told |= reader.describe()
    tell_start(told["start"])
    rows, done = [], 0
    batch_size = FLAGS.batch_size or cfg.eval.batch_size
    total = -(-len(windows(len(text.ids), cut)) // batch_size)
    with progress(total * len(variants), 10, "batch") as bar:
        for variant in variants:
            found = None
            for found in score_text(
                variant.model,
                text,
                cut,
                batch_size=batch_size,
                prefix=cfg.objective.kind == "prefix_lm",
            ):
                done += 1
                bar.update(done, {"loss": found.nats / found.num_tokens})
            assert found is not None
            rows += [{"positions": variant.name} | row for row in text_records(found, text)]
    title = f"{FLAGS.perplexity}, step {run.step}: windows of {cut.window}, stride {cut.stride}"
    shown = {title: report.markdown(text_table(rows))}
    return write_results(out, "perplexity", run, told, rows, shown)
