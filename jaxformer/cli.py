"""The command line: flags, exit status, and the dataflow of a run.

Exit status: 0 the target step was reached or the evaluation done; 2 bad input, one line
`error: <field or file>: <what>, <how to mend>`; 75 preempted and saved, the same command resumes;
1 anything else.
"""

import dataclasses
import difflib
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from jaxformer.config import RunConfig
from jaxformer.errors import Preempted, TrainingFailed, UserError

FLAGS = flags.FLAGS
OK, FAILED, BAD_INPUT, PREEMPTED = 0, 1, 2, 75

TRAIN_USAGE = """\
usage: python train.py --config=configs/NAME.py[:ARG] --workdir=DIR [--config.FIELD=VALUE …]

  --config    a file with get_config(); configs/base.py lists every field
  --workdir   the run's directory; the same command resumes an interrupted run
  --dry_run   show vocabulary, a sample batch, parameters, FLOPs, bytes; train and write nothing
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
    try:
        config_flags.DEFINE_config_file(
            "config", None, "A file with get_config().", lock_config=True
        )
    except flags.Error as error:  # it reads the command line, which may name a --flagfile
        print(f"error: --flagfile: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    flags.DEFINE_string("workdir", "", "The run's directory.")
    flags.DEFINE_bool("dry_run", False, "Show what would be trained.")
    _start(_train, TRAIN_USAGE)


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
    _start(_evaluate, EVAL_USAGE)


def _train() -> int:
    if FLAGS.config is None:
        raise UserError("--config", "is missing", "give a file such as configs/agreement.py")
    if not FLAGS.workdir and not FLAGS.dry_run:
        raise UserError("--workdir", "is missing", "say where the run may write")
    cfg = RunConfig.from_config_dict(FLAGS.config)

    from jaxformer.data import open_data
    from jaxformer.progress import show_progress
    from jaxformer.training.loop import train
    from jaxformer.training.workdir import locked

    if FLAGS.dry_run:
        data = open_data(cfg, None)
        _describe(cfg.resolve(**_sizes(cfg, data)), data)
        return OK
    with locked(FLAGS.workdir) as workdir:
        data = open_data(cfg, workdir)
        cfg = cfg.resolve(**_sizes(cfg, data))
        with show_progress(cfg.train.num_steps, cfg.train.log_every) as progress:
            step = train(cfg, data, workdir, progress=progress)
    print(f"trained to step {step}; metrics: {os.path.join(FLAGS.workdir, 'metrics.jsonl')}")
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


def _start(main: Callable[[], int], usage: str) -> None:
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
    app.run(lambda _: _guard(main, FLAGS.debug), flags_parser=lambda argv: parse(argv, usage))


def parse(argv: Sequence[str], usage: str) -> list[str]:
    """Parses flags and loads the config; whatever is wrong ends the process with status 2."""
    if {"--help", "-help", "-h", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(usage, end="")
        sys.exit(OK)

    def read() -> int:
        leftover = FLAGS(list(argv))[1:]
        if leftover:
            raise UserError(leftover[0], "is not a flag", "write --name=value; see --help")
        if "config" in FLAGS:
            _ = FLAGS.config and FLAGS.config.keys()  # a missing file raises at first use only
        return OK

    debug = "--debug" in argv
    logging.set_verbosity(logging.ERROR)  # Orbax tells its whole story otherwise
    getLogger("jaxformer").setLevel("WARNING")
    status = _guard(lambda: _reworded(read, argv), debug)
    if status != OK:
        sys.exit(status)
    return list(argv[:1])


def _reworded(read: Callable[[], int], argv: Sequence[str]) -> int:
    """Turns what absl and ml_collections raise into one line about one flag."""
    try:
        return read()
    except UserError:
        raise
    except Exception as error:
        _check_config(argv)
        text = " ".join(str(error).split())
        if unknown := re.match(r"Unknown command line flag '?([\w.\-]+)", text):
            near = difflib.get_close_matches(unknown[1], list(FLAGS), n=1)
            mend = f"did you mean --{near[0]}?" if near else "see --help"
            raise UserError(f"--{unknown[1]}", "is not a flag", mend) from error
        if value := re.match(r"flag --(?:config\.)?([\w.\-]+)=(.*?): (.*)", text):
            kinds = {"int()": "a whole number", "to float": "a number", "boolean": "true or false"}
            takes = next((kind for words, kind in kinds.items() if words in value[3]), "")
            mend = f"it takes {takes}" if takes else f"({value[3]})"
            raise UserError(value[1], f"is {value[2]!r}", mend) from error
        raise UserError("flags", f"cannot be read ({text[:200]})", "see --help") from error


def _check_config(argv: Sequence[str]) -> None:
    """Raises UserError for a config file that does not load, or an override of no field."""
    given = [argument for argument in argv if re.match("--?config=", argument)]
    if not given:
        return
    path = given[-1].split("=", 1)[1]
    file, *argument = path.split(":", 1)
    if not os.path.isfile(file):
        raise UserError(file, "is not a file", "--config takes the path of a config file")
    try:
        config = runpy.run_path(file)["get_config"](*argument)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        what, mend = f"cannot be loaded ({reason})", "--debug shows the traceback"
        raise UserError(path, what, mend) from error
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        section: Any = config
        walked: list[str] = []
        for name in match[1].split(".") if match else ():
            walked.append(name)
            names = list(section) if isinstance(section, ConfigDict) else []
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                better = ".".join([*walked[:-1], *near])
                mend = f"did you mean {better}?" if near else "see configs/base.py"
                raise UserError(".".join(walked), "is not a field", mend)
            section = section[name]


def _guard(main: Callable[[], int], debug: bool) -> int:
    """Runs `main` and turns what it raises into an exit status and one line on stderr."""
    try:
        return main()
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except Preempted as error:
        print(error, file=sys.stderr)
        return PREEMPTED
    except TrainingFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return FAILED
