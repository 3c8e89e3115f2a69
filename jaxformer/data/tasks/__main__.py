"""`python -m jaxformer.data.tasks` lists the tasks, as docs/tasks.md does."""

import dataclasses

from jaxformer.data.tasks import TASKS
from jaxformer.data.tasks.base import Task


def table() -> str:
    """A row of markdown for each task."""
    lines = [
        "| data.task.name | an example | what it asks | length | options | after |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, task in TASKS.items():
        about = task.about
        row = about.example if about.separator else about.example.replace("<sep> ", "")
        cells = (name, f"`{row}`", about.meaning, _length(task), _options(task), about.citation)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _length(task: Task) -> str:
    about = task.about
    up_to = f"{about.smallest} to {about.largest} " if about.largest else ""
    return (
        up_to
        + (f"from {about.smallest} " if about.smallest > 1 and not up_to else "")
        + about.length_is
    )


def _options(task: Task) -> str:
    values = dataclasses.asdict(task)
    return ", ".join(f"{name}={values[name]}" for name in task.about.reads if values[name])


if __name__ == "__main__":
    print(table(), end="")
