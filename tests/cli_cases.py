"""Runs command lines, each in a fork of one process that has imported everything.

As a program it reads a JSON list of [program, arguments…] from stdin and writes a list of [status, stdout, stderr].
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from jaxformer import cli
from jaxformer.training import diff, verify

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = {
    "train.py": cli.run_train,
    "eval.py": cli.run_eval,
    "sweep.py": cli.run_sweep,
    "diff": diff.main,
    "verify": verify.main,
}


def commands(cases: list[list[str]]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of command lines, run in the repository's root."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli_cases"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    return [tuple(result) for result in json.loads(done.stdout)]


def run(argv: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = argv
            status = 1
            try:
                ENTRIES[argv[0]]()
            except SystemExit as stop:
                status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
        _, code = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(code), out.read(), err.read()


def main() -> None:
    cases = json.load(sys.stdin)
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    # Imported before the forks: no device is touched by importing.
    import jaxformer.cli.eval_prompts
    import jaxformer.cli.eval_suite
    import jaxformer.data
    import jaxformer.evaluation.run
    import jaxformer.experiments.sweep
    import jaxformer.progress
    import jaxformer.run
    import jaxformer.training.loop  # noqa: F401

    json.dump([run(argv) for argv in cases], sys.stdout)


if __name__ == "__main__":
    main()
