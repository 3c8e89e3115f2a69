"""sweep.py: trains and evaluates a config under every setting of its axes, with several seeds."""

from pathlib import Path
from typing import Any

from absl import flags

from jaxformer.command import FLAGS, OK, define_config, start
from jaxformer.errors import UserError

USAGE = """\
usage: python sweep.py --config=configs/NAME.py[:ARG] --axis=FIELD=VALUE,… --out=DIR [flags]
       python sweep.py --report --out=DIR [--compare=…]

  --config    a file with get_config(); --config.FIELD=VALUE changes it for all cells
  --axis      a field and the values it takes, e.g. model.position.kind=none,rope,alibi; several
              axes form a grid. A value may set more fields: t5+model.position.t5.max_distance=32
  --seeds     runs of each setting, seeds config.seed and those that follow; default 5
  --seeds_per_program   seeds trained together in one program; default 0, as many as there is
              memory for; 1: one after another
  --suite     a file in configs/eval/ by name; default the one for the data
  --lengths   lengths to evaluate at, e.g. 0:10 or 64,128,256; default the suite's
  --out       where cells go, results.csv and .json, table.md, plot.svg and .png, index.html; the
              same command resumes
  --report    only write these files from the cells in --out; needs no --config
  --compare   published numbers to put beside: a csv file (columns arm, length, mean; task, std,
              seeds) or a name in configs/references/, such as kazemnejad2023:copy_same
  --select    the checkpoint that is evaluated: last (default); id_validation, of lowest
              validation loss; ood, the best beyond the training lengths, which stamps all results
              and needs --allow_ood_selection. Both need --config.train.keep_best=1
  --dry_run   list the cells, their parameters and examples, and time a step; write nothing
  --debug     show the traceback of an error
"""


def run_sweep() -> None:
    """The entry point of sweep.py."""
    define_config()
    flags.DEFINE_multi_string("axis", [], "A field and its values.")
    flags.DEFINE_integer("seeds", 5, "Seeds of each setting.", lower_bound=1)
    flags.DEFINE_integer("seeds_per_program", 0, "Seeds trained together.", lower_bound=0)
    flags.DEFINE_string("suite", "", "A file in configs/eval/ by name.")
    flags.DEFINE_string("lengths", "", "Lengths to evaluate at.")
    flags.DEFINE_string("out", "", "Where cells and results go.")
    flags.DEFINE_bool("report", False, "Only aggregate what is there.")
    flags.DEFINE_bool("dry_run", False, "List the cells.")
    flags.DEFINE_string("compare", "", "Published numbers.")
    flags.DEFINE_string("select", "last", "Which checkpoint is evaluated.")
    flags.DEFINE_bool("allow_ood_selection", False, "Allow --select=ood.")
    start(_sweep, USAGE)


def _sweep() -> int:
    if FLAGS.report and FLAGS.dry_run:
        raise UserError("--report", "and --dry_run are given", "leave one out")
    if FLAGS.config is None and (FLAGS.axis or not FLAGS.report):
        raise UserError("--config", "is missing", "give a file such as configs/agreement.py")
    if not FLAGS.out and not FLAGS.dry_run:
        raise UserError("--out", "is missing", "say where the sweep may write")

    from jaxformer.experiments.publish import write_report
    from jaxformer.experiments.reference import check_reference, read_reference
    from jaxformer.experiments.results import make_plan, read_plan
    from jaxformer.experiments.selection import check_flags

    out, select = Path(FLAGS.out).absolute(), FLAGS.select
    check_flags(select, FLAGS.allow_ood_selection)
    reference = read_reference(FLAGS.compare) if FLAGS.compare else None
    if FLAGS.report and FLAGS.config is None:
        if select != "last":
            mend = "leave it out: what was evaluated cannot be changed without --config"
            raise UserError("--select", f"is {select} with --report", mend)
        for name in ("suite", "lengths", "seeds"):
            if FLAGS[name].present:
                mend = "leave it out, or give --config and --axis too: they say which cells"
                raise UserError(f"--{name}", "is given with --report", mend)
        plan = read_plan(out)
        if reference is not None:
            check_reference(reference, plan.cells)
        return _show(write_report(out, plan, reference))

    from jaxformer.experiments.axes import parse_axis
    from jaxformer.experiments.cells import plan as plan_jobs
    from jaxformer.experiments.sweep import run_sweep
    from jaxformer.training.workdir import locked

    axes = [parse_axis(text) for text in FLAGS.axis]
    base: Any = FLAGS.config
    how: Any = {"suite": FLAGS.suite, "lengths": FLAGS.lengths, "select": select}
    jobs = plan_jobs(base.to_dict(), axes, FLAGS.seeds, **how)
    if reference is not None:
        check_reference(reference, [job.cell for job in jobs])
    if FLAGS.dry_run:
        _describe(jobs, out if FLAGS.out else None)
        return OK
    if FLAGS.report:
        read_plan(out)  # refuses what is no sweep
        return _show(write_report(out, make_plan(jobs, select), reference))
    with locked(out, "out"):
        _share_compilations(out)
        return _show(run_sweep(jobs, out, select, reference, FLAGS.seeds_per_program))


def _show(report) -> int:
    print(f"{report.text}\nwritten: " + "\n         ".join(str(path) for path in report.paths))
    return OK


def _share_compilations(out: Path) -> None:
    """Lets cells of equal shape share compiled programs, on the disk: a restart finds them too."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    jax.config.update("jax_compilation_cache_dir", str(out / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    compilation_cache.reset_cache()  # whether it is used was decided by the first compilation


def _describe(jobs, out: Path | None) -> None:
    """Prints what --dry_run promises."""
    from jaxformer.evaluation.report import markdown
    from jaxformer.experiments.estimate import describe
    from jaxformer.experiments.groups import check_seeds, make_groups
    from jaxformer.experiments.preview import examples
    from jaxformer.experiments.sweep import is_finished

    table = [
        {
            **job.cell.arm,
            "seed": job.cell.seed,
            "cell": job.cell.name,
            "parameters": f"{job.cell.num_parameters:,}",
            "steps": f"{job.config.train.num_steps:,}",
            "finished": out is not None and is_finished(out, job.cell),
        }
        for job in jobs
    ]
    print(f"{len(table)} cells\n\n{markdown(table)}")
    for title, lines in examples(jobs).items():
        print(f"{title}\n\n{markdown(lines)}")
    check_seeds(jobs, FLAGS.seeds_per_program)
    waiting = [job for job in jobs if out is None or not is_finished(out, job.cell)]
    if waiting:
        print(describe(make_groups(jobs, waiting, out, FLAGS.seeds_per_program)))
