"""Runs benchmarks by name and prints their tables: python -m benchmarks [NAME …]"""

import importlib
import sys

from benchmarks.timing import machine
from jaxformer.evaluation.report import markdown

NAMES = ("train_step", "decode", "attention", "lengths", "start_up", "overheads", "seeds")


def main(names: list[str]) -> int:
    for name in names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"## {name}\n\n{machine()}\n\n{markdown(module.main())}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
