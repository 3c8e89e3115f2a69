"""Seconds from the command to the first finished step of `make demo`: python -m benchmarks start_up

A process of its own each time, in a directory of its own: cold, and with XLA's programs kept from
the time before (JAX_COMPILATION_CACHE_DIR). The clock starts before Python and stops at the line of
step 1. "import" is what `import jaxformer.cli.train` and JAX alone take.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROUNDS = 3
TRAIN = ("train.py", "--config=configs/agreement.py", "--config.train.log_every=1")
IMPORT = ("-c", "import jax, jaxformer.run; jax.devices()")


def main(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {"import": [], "cold": [], "with a compilation cache": []}
    with tempfile.TemporaryDirectory() as cache:
        kept = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        first_step(kept)
        for _ in range(rounds):
            began = time.perf_counter()
            subprocess.run([sys.executable, *IMPORT], check=True)
            times["import"].append(time.perf_counter() - began)
            times["cold"].append(first_step({}))
            times["with a compilation cache"].append(first_step(kept))
    return [
        {"": name, "seconds": f"{statistics.median(found):.1f}", "least": f"{min(found):.1f}"}
        for name, found in times.items()
    ]


def first_step(environment: dict[str, str]) -> float:
    """Seconds to the line of step 1; the run is then stopped."""
    with tempfile.TemporaryDirectory() as workdir:
        command = [sys.executable, *TRAIN, f"--workdir={workdir}"]
        inherited = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
        began = time.perf_counter()
        run = subprocess.Popen(
            command,
            env=inherited | {"PYTHONUNBUFFERED": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.stdout is not None
        said = []
        for line in run.stdout:
            said.append(line)
            if line.startswith("step 1/"):
                spent = time.perf_counter() - began
                run.send_signal(signal.SIGKILL)
                run.wait()
                return spent
        sys.exit("no step was made:\n" + "".join(said))
