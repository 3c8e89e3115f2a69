"""eval.py: evaluates a run, or continues a prompt with it."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from absl import flags

from jaxformer.command import FLAGS, OK, start
from jaxformer.errors import PUBLISHED, UserError

USAGE = """\
usage: python eval.py --workdir=DIR [flags]

  --workdir   a run of train.py; hf:PATH, a folder of the Hugging Face library, continues a --prompt
  --step      the checkpoint's step; default the newest
  --weights   raw, the parameters as they were trained, or ema, their average; default the run's
              eval.weights
  --suite     a file in configs/eval/ by name; default the one for the run's data
  --lengths   lengths of a task, or tokens of context of a text, to evaluate at, e.g. 0:10 or
              1:200:10,256 (start:stop:step)
  --positions test-time schemes to evaluate under, side by side: see below; default trained
  --prompt    continue this text instead of evaluating; may be given several times; a run of
              seq2seq takes it for the source and prints the target
  --max_new_tokens, --sampler, --seed   how to continue: see below
  --mesh      devices to use: AXIS:SIZE,… of data, fsdp, tensor, context, such as fsdp:2,tensor:4
              (data takes the rest), or run for the run's own mesh; default one device, of
              several processes run
  --out       where results go; default WORKDIR/eval
  --coordinator, --num_processes, --process_id   as of train.py, for a run that needs several
  --debug     show the traceback of an error

  --positions=SCHEME,…, a SCHEME is any of these, joined by + where several go together:
    trained     as it was trained            base:B      base of the rotary frequencies
    pi:S        position interpolation       none        no positions (only untrained encodings)
    ntk:S       NTK-aware scaling            window:N    attend to fewer than N tokens away
    dyn_ntk[:A] dynamic NTK                  logn        logits grow with ln n beyond training
    parts:S     NTK-by-parts                 yarn:S      YaRN
    llama3:S    Llama 3's scaling            (S: how many times longer than in training)

  --sampler=greedy | temperature:T | top_k:K[:T] | top_p:P[:T] | min_p:P[:T]
    default top_p:0.9, of seq2seq greedy
"""


def run_eval() -> None:
    """The entry point of eval.py."""
    flags.DEFINE_string("workdir", "", "A run of train.py.")
    flags.DEFINE_integer("step", None, "The checkpoint's step.", lower_bound=0)
    flags.DEFINE_string("weights", "", "Which parameters: raw or ema.")
    flags.DEFINE_string("suite", "", "A file in configs/eval/ by name.")
    flags.DEFINE_string("lengths", "", "Lengths to evaluate at.")
    flags.DEFINE_string("positions", "trained", "Test-time schemes.")
    flags.DEFINE_multi_string("prompt", [], "Text to continue, or a source.")
    flags.DEFINE_integer("max_new_tokens", 100, "Tokens to add to a prompt.", lower_bound=1)
    flags.DEFINE_string("sampler", "", "How tokens are chosen.")
    flags.DEFINE_integer("seed", 0, "Of the sampler.", lower_bound=0)
    flags.DEFINE_string("mesh", "", "Devices along each axis.")
    flags.DEFINE_string("out", "", "Where results go.")
    flags.DEFINE_string("coordinator", None, "Of several processes: HOST:PORT of process 0.")
    flags.DEFINE_integer("num_processes", None, "How many there are.")
    flags.DEFINE_integer("process_id", None, "Which one this is.")
    start(_evaluate, USAGE)


def _evaluate() -> int:
    if not FLAGS.workdir:
        raise UserError("--workdir", "is missing", "give the directory of a train.py run")

    from jaxformer.distributed import find_group, is_alone, joined
    from jaxformer.evaluation.schemes import parse_schemes
    from jaxformer.run import load

    schemes = parse_schemes(FLAGS.positions)
    group = find_group(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id, os.environ)
    with joined(group):
        mesh = FLAGS.mesh or ("" if is_alone() else "run")
        run = load(FLAGS.workdir, FLAGS.step, mesh, FLAGS.weights)
        if FLAGS.prompt:
            return _continue(run, schemes)
        if FLAGS.workdir.startswith(PUBLISHED):
            mend = "give a --prompt, or make it a run: train.py with train.init_from and your data"
            raise UserError("--workdir", f"is {FLAGS.workdir}, which has no data", mend)
        return _measure(run, schemes)


def _measure(run, schemes) -> int:
    """Evaluates by the suite. All processes take part, the first one writes."""
    from jaxformer.data import changed_sources, open_data, source_fingerprints
    from jaxformer.distributed import first_alone, is_first
    from jaxformer.evaluation.lengths import parse_lengths
    from jaxformer.evaluation.run import evaluate
    from jaxformer.evaluation.suite import load_suite

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
    if not is_first():
        return OK
    for title, table in found.tables.items():
        print(f"{title}\n\n{table}")
    for text in found.samples[:3]:
        print(f"sample: {text}")
    print("\nwritten: " + "\n         ".join(str(path) for path in found.paths))
    return OK


def _continue(run, schemes) -> int:
    """Prints each --prompt with its continuation, or the target of each source; one scheme."""
    import jax

    from jaxformer.distributed import is_first
    from jaxformer.evaluation.schemes import make_variant
    from jaxformer.generation import answer, continue_text, parse_sampler

    if len(schemes) > 1:
        mend = "a prompt is continued under one of them: give that"
        raise UserError("positions", f"has {len(schemes)} schemes", mend)
    cfg, has_pairs = run.config, run.config.objective.has_pairs
    if cfg.objective.kind == "span_corruption":
        mend = "leave --prompt out: its texts are no sources that have a target"
        raise UserError("objective.kind", "is span_corruption, which continues nothing", mend)
    how: dict[str, Any] = {
        "max_new_tokens": FLAGS.max_new_tokens,
        "sampler": parse_sampler(FLAGS.sampler or ("greedy" if has_pairs else "top_p:0.9")),
        "key": jax.random.key(FLAGS.seed),
        "add_bos": cfg.data.add_bos,
    }
    try:
        model = make_variant(schemes[0], run.model, cfg).model
        if has_pairs:
            texts = answer(model, run.tokenizer, FLAGS.prompt, **how, add_eos=cfg.data.add_eos)
        else:
            prefix = cfg.objective.kind == "prefix_lm"
            texts = continue_text(model, run.tokenizer, FLAGS.prompt, **how, prefix=prefix)
    except UserError as error:
        where = "--prompt" if error.where in ("text", "prompt", "source") else error.where
        raise UserError(where, error.what, error.mend)
    if is_first():
        print("\n---\n".join(texts))
    return OK
