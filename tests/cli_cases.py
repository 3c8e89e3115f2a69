"""Runs command lines, each in a fork of one process that has imported everything, for test_cli.py.

Reads a JSON list of [program, arguments…] from stdin; writes a list of [status, stdout, stderr].
"""

import contextlib
import json
import os
import sys
import tempfile
import warnings

from jaxformer import cli
from jaxformer.training import diff, verify

ENTRIES = {
    "train.py": cli.run_train,
    "eval.py": cli.run_eval,
    "sweep.py": cli.run_sweep,
    "diff": diff.main,
    "verify": verify.main,
}


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
