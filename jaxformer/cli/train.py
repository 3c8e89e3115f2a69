"""train.py: trains a config, or shows what would be trained."""

import contextlib
import dataclasses
import os
from logging import getLogger

from absl import flags

from jaxformer.cli.aot import print_aot, print_memory
from jaxformer.command import FLAGS, OK, define_config, start
from jaxformer.config import RunConfig
from jaxformer.errors import UserError

USAGE = """\
usage: python train.py --config=configs/NAME.py[:ARG] --workdir=DIR [--config.FIELD=VALUE …]

  --config    a file with get_config(); configs/base.py lists every field
  --workdir   the run's directory; the same command resumes an interrupted run
  --dry_run   show vocabulary, a sample batch, parameters, FLOPs, bytes; train and write nothing
  --aot=CHIP:SHAPE   compile the step for TPUs that need not be here, such as v5e:16x16 (also v5p,
              v6e): memory, collectives, a bound on speed; status 2 if it does not fit
  --coordinator=HOST:PORT --num_processes=N --process_id=K   one of several processes, started
              with the same command otherwise; found without flags on TPU pods and under SLURM
  --debug     show the traceback of an error
"""


def run_train() -> None:
    """The entry point of train.py."""
    define_config()
    flags.DEFINE_string("workdir", "", "The run's directory.")
    flags.DEFINE_bool("dry_run", False, "Show what would be trained.")
    flags.DEFINE_string("aot", None, "Compile for these TPUs: CHIP:SHAPE.")
    flags.DEFINE_string("coordinator", None, "Of several processes: HOST:PORT of process 0.")
    flags.DEFINE_integer("num_processes", None, "How many there are.")
    flags.DEFINE_integer("process_id", None, "Which one this is.")
    start(_train, USAGE)


def _train() -> int:
    if FLAGS.config is None:
        raise UserError("--config", "is missing", "give a file such as configs/agreement.py")
    if not FLAGS.workdir and not FLAGS.dry_run and FLAGS.aot is None:
        raise UserError("--workdir", "is missing", "say where the run may write")
    for flag in ("coordinator", "num_processes", "process_id"):
        if (FLAGS.dry_run or FLAGS.aot is not None) and FLAGS[flag].present:
            mend = "leave it out: one process shows what all would train"
            what = f"is given with {'--dry_run' if FLAGS.dry_run else '--aot'}"
            raise UserError(f"--{flag}", what, mend)
    cfg = RunConfig.from_config_dict(FLAGS.config)

    from jaxformer.data import open_data, resolve
    from jaxformer.distributed import find_group, first_alone, is_first, joined, together
    from jaxformer.nn.positions import check_bounds
    from jaxformer.progress import show_progress
    from jaxformer.training.loop import train
    from jaxformer.training.workdir import check_shared, locked

    check_bounds(cfg)
    if FLAGS.aot is not None:
        if FLAGS.dry_run:
            raise UserError("--aot", "is given besides --dry_run", "give one of them")
        print_aot(cfg, FLAGS.aot)
        return OK
    if FLAGS.dry_run:
        data = open_data(cfg, None)
        _describe(resolve(cfg, data), data)
        return OK
    group = find_group(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id, os.environ)
    with joined(group), contextlib.ExitStack() as held:
        with together():
            workdir = held.enter_context(locked(FLAGS.workdir))
        check_shared(workdir)
        if not is_first():
            getLogger("jaxformer").setLevel("ERROR")  # what process 0 says holds for all
        data = first_alone(lambda: open_data(cfg, workdir))
        with together():
            cfg = resolve(cfg, data)
        progress = None
        if is_first():
            progress = held.enter_context(show_progress(cfg.train.num_steps, cfg.train.log_every))
        step = train(cfg, data, workdir, progress=progress)
        if is_first():
            print(
                f"trained to step {step}; metrics: {os.path.join(FLAGS.workdir, 'metrics.jsonl')}"
            )
    return OK


def _describe(cfg, data) -> None:
    """Prints what --dry_run promises."""
    from jaxformer.analysis.accounts import active_parameters, flops, module_table
    from jaxformer.data import describe
    from jaxformer.evaluation.report import markdown

    for name, value in describe(data, cfg).items():
        print(f"{name}: {value}")
    length = cfg.data.target_length or cfg.data.length
    sizes = {"length": length, "source_length": cfg.data.length}
    table = module_table(cfg.model, **sizes, compute_dtype=cfg.compute_dtype)
    readable = [{n: f"{v:,}" if isinstance(v, int) else v for n, v in r.items()} for r in table]
    print("\nflops (forward) and bytes are a token's\n\n" + markdown(readable))
    if cfg.model.moe.num_experts:
        print(f"{active_parameters(cfg.model):,} parameters meet a token")
    found = flops(cfg.model, **sizes)
    kinds = {name.replace("_", " "): n for name, n in dataclasses.asdict(found).items()}
    shares = ", ".join(f"{kind} {n / found.total:.1%}" for kind, n in kinds.items())
    print(f"{found.total:,} FLOPs a token: {shares}")
    steps, rows = cfg.train.num_steps, cfg.train.batch_size
    of_target = f" and {length} of the target" if cfg.objective.has_source else ""
    print(f"{steps:,} steps of {rows} rows x {cfg.data.length} tokens{of_target}")
    print_memory(cfg)
