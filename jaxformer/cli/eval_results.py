"""Where the results of an evaluation go, and what is printed of them."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.command import FLAGS, OK
from jaxformer.distributed import is_first, say, together
from jaxformer.errors import PUBLISHED, UserError
from jaxformer.evaluation import report
from jaxformer.progress import Bar, Lines, Silent, show_progress
from jaxformer.run import Run


def is_published() -> bool:
    """Whether the model is a folder of the Hugging Face library, in which nothing is written."""
    return FLAGS.workdir.startswith(PUBLISHED)


def results_folder() -> Path:
    """--out, made, or WORKDIR/eval; UserError where there is none or it cannot be written."""
    if is_published() and not FLAGS.out:
        raise UserError("--out", f"is missing: {FLAGS.workdir} is read only", "name a folder")
    out = Path(FLAGS.out or Path(FLAGS.workdir) / "eval")
    with together():
        report.make_directory(out)
    return out


def write_results(
    out: Path,
    name: str,
    run: Run,
    told: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    shown: Mapping[str, str],
) -> int:
    """Writes NAME.csv, NAME.json and NAME.md and prints the tables; of several processes one."""
    if is_first():
        about = {"workdir": FLAGS.workdir, "step": run.step, "weights": run.weights}
        told = about | {"compute_dtype": run.config.compute_dtype} | dict(told)
        show(shown, report.write_tables(out, name, told, rows, shown))
    return OK


def show(tables: Mapping[str, str], paths: Sequence[Path], more: str = "") -> None:
    """Prints tables under their titles, more lines, and where all was written."""
    for title, table in tables.items():
        print(f"{title}\n\n{table}")
    print(more, end="")
    print("\nwritten: " + "\n         ".join(str(path) for path in paths))


@contextlib.contextmanager
def progress(total: int, every: int, unit: str) -> Iterator[Bar | Lines | Silent]:
    """The progress display; of several processes one has it."""
    if not is_first():
        yield Silent()
        return
    with show_progress(total, every, unit) as bar:
        yield bar


def tell_start(start: Any) -> None:
    """Says where no token comes before a text."""
    if start is None:
        say("no token comes before a text in this run: the first one of each is not scored")
