"""Proof that a config's run is exact: python -m jaxformer.training.verify --config=… --steps=40

The run is trained straight through on one CPU device; then again with signals at random moments,
inside saves and while it starts too, which must change no bit; then on several devices and in
several processes, which must see the same data in the same order and may differ in the last bits of
the losses; and there again with signals. All of them are processes of train.py.
"""

import dataclasses
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
from absl import flags

from jaxformer.command import FLAGS, OK, define_config, start
from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.evaluation.report import markdown
from jaxformer.training.diff import Difference, compare_arrays, compare_lines, read_lines
from jaxformer.training.trials import Broken, Moment, Place, Trial, draw_moments

DIFFERENT, BAD_INPUT = 1, 2
KILLS_A_RUN = 5
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
CONFIG = """\
import json
from pathlib import Path

from ml_collections import ConfigDict


def get_config():
    return ConfigDict(json.loads(Path(__file__).with_suffix(".json").read_text()))
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """A run, what was done to it, and the first difference from the run it must equal."""

    name: str
    place: Place
    moments: tuple[Moment, ...]
    against: str
    rtol: float
    difference: Difference | None


class Verification:
    """The runs of one verification, under `out`."""

    def __init__(self, cfg: RunConfig, out: Path, seed: int, timeout: float):
        self._out, self._timeout, self._rng = out, timeout, random.Random(seed)
        self.cfg, self._config = cfg, out / "config.py"
        self._start_seconds = 1.0
        out.mkdir(parents=True, exist_ok=True)
        cfg.save(out / "config.json")
        self._config.write_text(CONFIG, encoding="utf-8")

    def straight(self, name: str, place: Place, against: str = "", rtol: float = 0.0) -> Result:
        """A run that nothing interrupts."""
        trial = Trial(name, self._config, self._out, self._timeout)
        self._start_seconds = trial.finish(place)
        return self._result(trial, place, [], against or name, rtol)

    def interrupted(self, name: str, place: Place, kills: int, against: str) -> list[Result]:
        """Runs that are sent `kills` signals in all and then finish."""
        results: list[Result] = []
        sent, runs = 0, 0
        while sent < kills and runs < 3 * kills:
            runs += 1
            number = min(KILLS_A_RUN, kills - sent)
            steps, every = self.cfg.train.num_steps, self.cfg.train.checkpoint_every
            drawn = draw_moments(self._rng, number, steps, every, self._start_seconds)
            trial = Trial(f"{name}-{runs}", self._config, self._out, self._timeout)
            hit = [moment for moment in drawn if trial.interrupt(place, moment, self._rng)]
            trial.finish(place)
            sent += len(hit)
            results.append(self._result(trial, place, hit, against, 0.0))
            if results[-1].difference is not None:
                break
        return results

    def moved(self, name: str, place: Place, against: str, rtol: float) -> Result:
        """A run that is killed on one device half-way and goes on elsewhere."""
        trial = Trial(name, self._config, self._out, self._timeout)
        half = Moment("step", self.cfg.train.num_steps // 2, 0.0, "SIGKILL")
        hit = [half] if trial.interrupt(Place(), half, self._rng) else []
        trial.finish(place)
        return self._result(trial, place, hit, against, rtol)

    def _result(
        self, trial: Trial, place: Place, hit: list[Moment], against: str, rtol: float
    ) -> Result:
        other = self._out / against
        difference = compare_lines(other, trial.workdir, rtol)
        if not rtol and against != trial.name:
            difference = difference or _same_lines(other, trial.workdir)
            tensor = compare_arrays(other, trial.workdir)
            if difference and tensor:
                difference = dataclasses.replace(difference, note=str(tensor))
            difference = difference or tensor
        result = Result(trial.name, place, tuple(hit), against, rtol, difference)
        sent = f", {'; '.join(map(str, hit))}" if hit else ""
        print(f"{trial.name}: {_verdict(result)}{sent}", flush=True)
        return result

    def table(self, results: list[Result]) -> str:
        """All runs with the ends of their hash chains, in Markdown."""
        last = self.cfg.train.num_steps
        rows = []
        for result in results:
            lines = read_lines(self._out / result.name)
            line = lines.get((last, "train"), {})
            rows.append(
                {
                    "run": result.name,
                    "devices": result.place.devices,
                    "processes": result.place.processes,
                    "signals": len(result.moments),
                    "data": line.get("data", ""),
                    "chain": line.get("chain", ""),
                    "losses differ by": _spread(read_lines(self._out / result.against), lines),
                    "result": _verdict(result),
                }
            )
        return markdown(rows)


def shortened(cfg: RunConfig, steps: int) -> RunConfig:
    """The config's run cut off after `steps`: the same numbers up to there, told step by step."""
    if steps < 4:
        raise UserError("--steps", f"is {steps}", "give 4 or more")
    schedule, train = cfg.schedule, cfg.train
    if schedule.has_end and not schedule.decay_steps:
        least = schedule.warmup_steps + schedule.cooldown_steps + 1
        schedule = dataclasses.replace(
            schedule, decay_steps=max(train.num_steps, steps, least), cooldown_steps=0
        )
    train = dataclasses.replace(
        train,
        num_steps=steps,
        num_epochs=0.0,
        log_every=1,
        eval_every=max(1, steps // 4),
        checkpoint_every=max(1, steps // 8),
        check_every=max(1, steps // 4),
    )
    short = dataclasses.replace(cfg, schedule=schedule, train=train)
    short.check()
    return short


def _same_lines(a: Path, b: Path) -> Difference | None:
    """A line of metrics that one run has and the other lacks."""
    lines_a, lines_b = read_lines(a), read_lines(b)
    alone = sorted(lines_a.keys() ^ lines_b.keys())
    if not alone:
        return None
    step, split = alone[0]
    found = ["present" if (step, split) in lines else "absent" for lines in (lines_a, lines_b)]
    return Difference(step, f"the line of split {split}", (found[0], found[1]))


def _spread(expected: dict[Any, dict[str, Any]], found: dict[Any, dict[str, Any]]) -> str:
    """The greatest relative difference between the losses of two runs."""
    pairs = [(expected[key]["loss"], found[key]["loss"]) for key in expected.keys() & found.keys()]
    apart = [abs(a - b) / (abs(a) or 1.0) for a, b in pairs if None not in (a, b)]
    return f"{max(apart):.1e}" if any(apart) else "0"


def _verdict(result: Result) -> str:
    if result.difference is not None:
        return f"DIFFERENT from {result.against}"
    if result.name == result.against:
        return "reference"
    how = f"losses within {result.rtol:g}, same data" if result.rtol else "every bit"
    return f"equals {result.against}: {how}"


def _verify() -> int:
    jax.config.update("jax_platforms", "cpu")
    if FLAGS.config is None:
        raise UserError("--config", "is missing", "give a file such as configs/agreement.py")
    cfg = shortened(RunConfig.from_config_dict(FLAGS.config), FLAGS.steps)
    out = Path(FLAGS.out or tempfile.mkdtemp(prefix="jaxformer-verify-")).absolute()
    if not 0 <= FLAGS.rtol < 1:
        raise UserError("--rtol", f"is {FLAGS.rtol}", "give 0 to below 1")
    if out.exists() and not out.is_dir():
        raise UserError("--out", f"{out} is a file", "name a new folder")
    if out.exists() and any(out.iterdir()):
        raise UserError("--out", f"{out} is not empty", "name a new folder")
    try:
        results = _runs(Verification(cfg, out, FLAGS.seed, FLAGS.timeout))
    except Broken as broken:
        if broken.status == BAD_INPUT:
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
