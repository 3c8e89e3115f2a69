"""The command lines of train.py and eval.py, and the dataflow of a run."""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from absl import flags

from jaxformer.command import FLAGS, OK, define_config, start
from jaxformer.config import RunConfig
from jaxformer.errors import UserError

TRAIN_USAGE = """\
usage: python train.py --config=configs/NAME.py[:ARG] --workdir=DIR [--config.FIELD=VALUE …]

  --config    a file with get_config(); configs/base.py lists every field
  --workdir   the run's directory; the same command resumes an interrupted run
  --dry_run   show vocabulary, a sample batch, parameters, FLOPs, bytes; train and write nothing
  --coordinator=HOST:PORT --num_processes=N --process_id=K   one of several processes, started
              with the same command otherwise; found without flags on TPU pods and under SLURM
  --debug     show the traceback of an error
"""
EVAL_USAGE = """\
usage: python eval.py --workdir=DIR [flags]

  --workdir   a run of train.py
  --step      the checkpoint's step; default the newest
  --suite     a file in configs/eval/ by name; default the one for the run's data
  --lengths   lengths to evaluate a task at, e.g. 0:10 or 1:200:10,256 (start:stop:step)
  --prompt    continue this text instead of evaluating; may be given several times
  --max_new_tokens, --sampler, --seed   how to continue: see below
  --out       where results go; default WORKDIR/eval
  --debug     show the traceback of an error

  --sampler=greedy | temperature:T | top_k:K[:T] | top_p:P[:T] | min_p:P[:T]
"""


def run_train() -> None:
    """The entry point of train.py."""
    define_config()
    flags.DEFINE_string("workdir", "", "The run's directory.")
    flags.DEFINE_bool("dry_run", False, "Show what would be trained.")
    flags.DEFINE_string("coordinator", None, "Of several processes: HOST:PORT of process 0.")
    flags.DEFINE_integer("num_processes", None, "How many there are.")
    flags.DEFINE_integer("process_id", None, "Which one this is.")
    start(_train, TRAIN_USAGE)


def run_eval() -> None:
    """The entry point of eval.py."""
    flags.DEFINE_string("workdir", "", "A run of train.py.")
    flags.DEFINE_integer("step", None, "The checkpoint's step.", lower_bound=0)
    flags.DEFINE_string("suite", "", "A file in configs/eval/ by name.")
    flags.DEFINE_string("lengths", "", "Lengths to evaluate a task at.")
    flags.DEFINE_multi_string("prompt", [], "Text to continue.")
    flags.DEFINE_integer("max_new_tokens", 100, "Tokens to add to a prompt.", lower_bound=1)
    flags.DEFINE_string("sampler", "top_p:0.9", "How tokens are chosen.")
    flags.DEFINE_integer("seed", 0, "Of the sampler.", lower_bound=0)
    flags.DEFINE_string("out", "", "Where results go.")
    start(_evaluate, EVAL_USAGE)


def _train() -> int:
    if FLAGS.config is None:
        raise UserError("--config", "is missing", "give a file such as configs/agreement.py")
    if not FLAGS.workdir and not FLAGS.dry_run:
        raise UserError("--workdir", "is missing", "say where the run may write")
    cfg = RunConfig.from_config_dict(FLAGS.config)

    from jaxformer.data import open_data
    from jaxformer.distributed import find_group, first_alone, is_first, joined, together
    from jaxformer.progress import show_progress
    from jaxformer.training.loop import train
    from jaxformer.training.workdir import locked

    if FLAGS.dry_run:
        data = open_data(cfg, None)
        _describe(cfg.resolve(**_sizes(cfg, data)), data)
        return OK
    group = find_group(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id, os.environ)
    with joined(group), contextlib.ExitStack() as held:
        with together():
            workdir = held.enter_context(locked(FLAGS.workdir))
        data = first_alone(lambda: open_data(cfg, workdir))
        with together():
            cfg = cfg.resolve(**_sizes(cfg, data))
        progress = None
        if is_first():
            progress = held.enter_context(show_progress(cfg.train.num_steps, cfg.train.log_every))
        step = train(cfg, data, workdir, progress=progress)
        if is_first():
            print(f"trained to step {step}; metrics: {Path(FLAGS.workdir) / 'metrics.jsonl'}")
    return OK


def _sizes(cfg: RunConfig, data: Any) -> dict[str, Any]:
    """What only the data can tell a config."""
    return {
        "vocab_size": data.tokenizer.vocab_size,
        "steps_per_epoch": len(data.train) / cfg.train.batch_size,
        "num_classes": len(data.classes),
    }


def _describe(cfg, data) -> None:
    """Prints what --dry_run promises."""
    from jaxformer.analysis.accounts import flops, module_table
    from jaxformer.data import describe
    from jaxformer.evaluation.report import markdown

    for name, value in describe(data, cfg).items():
        print(f"{name}: {value}")
    length = cfg.data.target_length or cfg.data.length
    sizes = {"length": length, "source_length": cfg.data.length}
    table = module_table(cfg.model, **sizes, compute_dtype=cfg.compute_dtype)
    readable = [{n: f"{v:,}" if isinstance(v, int) else v for n, v in r.items()} for r in table]
    print("\nflops (forward) and bytes are a token's\n\n" + markdown(readable))
    found = flops(cfg.model, **sizes)
    kinds = {name.replace("_", " "): n for name, n in dataclasses.asdict(found).items()}
    shares = ", ".join(f"{kind} {n / found.total:.1%}" for kind, n in kinds.items())
    print(f"{found.total:,} FLOPs a token: {shares}")
    steps, rows = cfg.train.num_steps, cfg.train.batch_size
    of_target = f" and {length} of the target" if cfg.objective.has_pairs else ""
    print(f"{steps:,} steps of {rows} rows x {cfg.data.length} tokens{of_target}")


def _evaluate() -> int:
    if not FLAGS.workdir:
        raise UserError("--workdir", "is missing", "give the directory of a train.py run")

    from jaxformer.data import open_data
    from jaxformer.evaluation.lengths import parse_lengths
    from jaxformer.evaluation.run import evaluate
    from jaxformer.evaluation.suite import load_suite
    from jaxformer.run import load

    workdir = Path(FLAGS.workdir)
    run = load(workdir, FLAGS.step)
    if FLAGS.prompt:
        return _continue(run)
    suite = load_suite(FLAGS.suite, run.config.data, run.config.objective.kind)
    lengths = parse_lengths(FLAGS.lengths) if FLAGS.lengths else ()
    out, metrics = Path(FLAGS.out or workdir / "eval"), workdir / "metrics.jsonl"
    data = open_data(run.config, workdir)
    if data.train.fingerprint != run.data:
        what = "is not the data that this run was trained on: it has changed"
        raise UserError(run.config.data.path or "data", what, "restore it or train a new run")
    found = evaluate(run, data, suite, out, lengths=lengths, metrics_path=metrics)
    for title, table in found.tables.items():
        print(f"{title}\n\n{table}")
    for text in found.samples[:3]:
        print(f"sample: {text}")
    print("\nwritten: " + "\n         ".join(str(path) for path in found.paths))
    return OK


def _continue(run) -> int:
    """Prints each --prompt with its continuation."""
    import jax

    from jaxformer.generation import continue_text, parse_sampler

    sampler = parse_sampler(FLAGS.sampler)
    try:
        texts = continue_text(
            run.model,
            run.tokenizer,
            FLAGS.prompt,
            max_new_tokens=FLAGS.max_new_tokens,
            sampler=sampler,
            key=jax.random.key(FLAGS.seed),
            add_bos=run.config.data.add_bos,
        )
    except UserError as error:
        where = "--prompt" if error.where in ("text", "prompt") else error.where
        raise UserError(where, error.what, error.mend)
    print("\n---\n".join(texts))
    return OK
