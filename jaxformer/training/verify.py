"""Proof that a config's run is exact: python -m jaxformer.training.verify --config=… --steps=40

The run is trained straight through on one CPU device; then again with signals at random moments,
inside saves and while it starts too, which must change no bit; then on several devices and in
several processes, which must see the same data in the same order and may differ in the last bits of
the losses; and there again with signals. All of them are processes of train.py.
"""

import shutil
import tempfile
from pathlib import Path

import jax
from absl import flags

from jaxformer.command import BAD_INPUT, FLAGS, OK, define_config, start
from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.training.trials import Broken, Place
from jaxformer.training.verification import Result, Verification, shortened

DIFFERENT = 1
USAGE = """\
usage: python -m jaxformer.training.verify --config=configs/NAME.py [--config.FIELD=VALUE …]

  Trains the config straight, then interrupted, then on other devices and processes (all on CPU),
  and compares hash chains, metrics and checkpoints. Exit status: 0 PASS, 1 different, 2 bad input.

  --steps       length of the runs; default 40
  --kills       signals (SIGKILL or SIGTERM) for each kind of run; default 10
  --devices     another number of devices (XLA fakes them); default 8, 1 for none
  --processes   another number of processes, a device each; default 2, 1 for none
  --seed        of the moments; default 0
  --rtol        tolerance on losses and gradient norms across devices; default 1e-3
  --timeout     seconds after which a process hangs; default 600
  --out         where the runs go; default a temporary folder, removed after PASS
"""


def _verify() -> int:
    jax.config.update("jax_platforms", "cpu")
    if FLAGS.config is None:
        raise UserError("--config", "is missing", "give a file such as configs/agreement.py")
    cfg = shortened(RunConfig.from_config_dict(FLAGS.config), FLAGS.steps)
    if not 0 <= FLAGS.rtol < 1:
        raise UserError("--rtol", f"is {FLAGS.rtol}", "give 0 to below 1")
    out = Path(FLAGS.out).absolute()
    if FLAGS.out and out.exists() and not out.is_dir():
        raise UserError("--out", f"{out} is a file", "name a new folder")
    if FLAGS.out and out.exists() and any(out.iterdir()):
        raise UserError("--out", f"{out} is not empty", "name a new folder")
    if not FLAGS.out:
        out = Path(tempfile.mkdtemp(prefix="jaxformer-verify-"))
    try:
        results = _runs(Verification(cfg, out, FLAGS.seed, FLAGS.timeout))
    except Broken as broken:
        if broken.status == BAD_INPUT:
            shutil.rmtree(out, ignore_errors=True)  # so that the same --out can be given again
            line = broken.text.splitlines()[-1].removeprefix("error: ")
            where, what = line.split(": ", 1)
            raise UserError(where, what, "mend it and verify again")
        print(f"DIFFERENT: {broken}\nruns: {out}")
        return DIFFERENT
    different = [result for result in results if result.difference is not None]
    signals = sum(len(result.moments) for result in results)
    if different:
        print(f"DIFFERENT: {different[0].name}: {different[0].difference}\nruns: {out}")
        return DIFFERENT
    print(f"PASS: 0 differences in {len(results)} runs of {FLAGS.steps} steps, {signals} signals")
    if not FLAGS.out:
        shutil.rmtree(out)
    return OK


def _runs(verification: Verification) -> list[Result]:
    """All runs that the flags ask for, and their table."""
    kills, rtol = FLAGS.kills, FLAGS.rtol
    results = [verification.straight("straight", Place())]
    if kills:
        results += verification.interrupted("interrupted", Place(), kills, "straight")
    elsewhere = {
        f"{FLAGS.devices}-devices": Place(FLAGS.devices, 1),
        f"{FLAGS.processes}-processes": Place(FLAGS.processes, FLAGS.processes),
    }
    for name, place in elsewhere.items():
        if place.devices == 1:
            continue
        results.append(verification.straight(name, place, "straight", rtol))
        results.append(verification.moved(f"to-{name}", place, "straight", rtol))
        if kills:
            results += verification.interrupted(f"{name}-interrupted", place, kills, name)
    print("\n" + verification.table(results))
    return results


def main() -> None:
    define_config()
    flags.DEFINE_integer("steps", 40, "Length of the runs.")
    flags.DEFINE_integer("kills", 10, "Signals for each kind of run.", lower_bound=0)
    flags.DEFINE_integer("devices", 8, "Another number of devices.", lower_bound=1)
    flags.DEFINE_integer("processes", 2, "Another number of processes.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the moments.")
    flags.DEFINE_float("rtol", 1e-3, "Tolerance on losses across devices.", lower_bound=0)
    flags.DEFINE_float("timeout", 600.0, "Seconds after which a process hangs.", lower_bound=1)
    flags.DEFINE_string("out", "", "Where the runs go.")
    start(_verify, USAGE)


if __name__ == "__main__":
    main()
