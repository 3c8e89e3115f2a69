"""Seeds in one program against runs one after another, and many steps a call against one.

    python -m benchmarks.seeds [--seeds=8] [--steps=2000] [--log_every=50]

What is trained is configs/lengths/majority.py: one layer, one head, d_model 16, batches of 64.
Every line is measured in a process of its own, so that each compiles what it needs, with all that
train.py does: metrics, an evaluation and a checkpoint at the end, compilation included. Nothing
else should run meanwhile. `python -m benchmarks seeds` does the same.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from configs.lengths import majority
from jaxformer.evaluation.report import markdown

WAYS = {
    "one program": (0, 0),
    "one program, one step a call": (0, 1),
    "one after another": (1, 0),
}


def values(steps: int, log_every: int) -> dict[str, Any]:
    """The config of a run."""
    c = majority.get_config()
    c.train.update(num_steps=steps, log_every=log_every)
    c.schedule.warmup_steps = min(c.schedule.warmup_steps, steps // 2)
    return c.to_dict()


def run(way: str, seeds: int, steps: int, log_every: int) -> float:
    """Seconds to train all seeds, compilation included, without starting Python."""
    from jaxformer.data import open_data
    from jaxformer.experiments.cells import plan
    from jaxformer.experiments.groups import make_groups
    from jaxformer.experiments.results import folder_of
    from jaxformer.experiments.seeds import train_seeds
    from jaxformer.training.loop import train

    per_program, one_step = WAYS[way]
    jobs = plan(values(steps, 1 if one_step else log_every), [], seeds, lengths="16")
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder), time.perf_counter()
        for group in make_groups(jobs, jobs, out, per_program):
            if len(group.jobs) > 1:
                train_seeds(group.jobs, out, group.folder)
                continue
            own, cfg = folder_of(out, group.jobs[0].cell), group.jobs[0].config
            train(cfg, open_data(cfg, own), own)
        return time.perf_counter() - began


def main(seeds: int = 8, steps: int = 2000, log_every: int = 50) -> list[dict[str, Any]]:
    seconds = {}
    for way in WAYS:
        command = [sys.executable, "-m", "benchmarks.seeds", f"--way={way}"]
        command += [f"--seeds={seeds}", f"--steps={steps}", f"--log_every={log_every}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        seconds[way] = float(done.stdout.splitlines()[-1])
    slowest = seconds["one after another"]
    return [
        {
            f"{seeds} seeds of {steps} steps": way,
            "seconds": f"{spent:.1f}",
            "ms a step and seed": f"{1000 * spent / (seeds * steps):.2f}",
            "times as fast": f"{slowest / spent:.2f}",
        }
        for way, spent in seconds.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--log_every", type=int, default=50)
    parser.add_argument("--way", choices=WAYS, help="measure this one in this process")
    given = parser.parse_args()
    sizes = given.seeds, given.steps, given.log_every
    print(run(given.way, *sizes) if given.way else markdown(main(*sizes)))
