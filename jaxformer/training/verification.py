"""The runs that `verify` compares: trained straight, interrupted and moved, and what differs."""

import dataclasses
import random
from pathlib import Path
from typing import Any

from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.evaluation.report import markdown
from jaxformer.training.diff import Difference, compare_arrays, compare_lines, read_lines
from jaxformer.training.trials import Moment, Place, Trial, draw_moments

KILLS_A_RUN = 5
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
