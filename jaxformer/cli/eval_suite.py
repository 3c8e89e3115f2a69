"""eval.py without a mode of its own: a run by its suite."""

import contextlib
import tempfile
from pathlib import Path

from jaxformer.cli.eval_results import is_published, show
from jaxformer.command import FLAGS, OK
from jaxformer.data import changed_sources, open_data, source_fingerprints
from jaxformer.distributed import first_alone, is_first
from jaxformer.errors import UserError
from jaxformer.evaluation.lengths import parse_lengths
from jaxformer.evaluation.run import evaluate
from jaxformer.evaluation.schemes import Scheme
from jaxformer.evaluation.suite import load_suite
from jaxformer.run import Run


def main(run: Run, schemes: tuple[Scheme, ...]) -> int:
    """Evaluates by the suite. All processes take part, the first one writes."""
    if is_published():
        mend = "give a --prompt, --prompts, --pairs, --perplexity or --scores, or make it a run"
        raise UserError("--workdir", f"is {FLAGS.workdir}, which has no data", mend)
    workdir = Path(FLAGS.workdir)
    suite = load_suite(FLAGS.suite, run.config.data, run.config.objective.kind)
    lengths = parse_lengths(FLAGS.lengths) if FLAGS.lengths else ()
    out, metrics = Path(FLAGS.out or workdir / "eval"), workdir / "metrics.jsonl"
    data = first_alone(lambda: open_data(run.config, workdir))
    if data.train.fingerprint != run.data:
        where = changed_sources(run.config.data, run.sources, source_fingerprints(data.train))
        what = "is not the data that this run was trained on: it has changed"
        raise UserError(where, what, "restore it or train a new run")
    with contextlib.ExitStack() as held:
        if not is_first():
            out = Path(held.enter_context(tempfile.TemporaryDirectory()))
        found = evaluate(
            run, data, suite, out, lengths=lengths, schemes=schemes, metrics_path=metrics
        )
    if is_first():
        samples = "".join(f"sample: {text}\n" for text in found.samples[:3])
        show(found.tables, found.paths, samples)
    return OK
