"""Results of a small sweep, made up: two arms, two seeds, lengths up to 4 in distribution.

rope's seed 1 has not learned the task; it has no length 8.
"""

from pathlib import Path

from jaxformer.experiments.cells import Cell
from jaxformer.experiments.results import Plan, Record, read_rows, write_plan, write_record
from jaxformer.experiments.study import Task, read_study

AXIS = "model.position.kind"
LENGTHS = (2, 4, 6, 8)
MATCHES = {
    "none": [[1.0, 1.0, 0.9, 0.4], [1.0, 0.99, 0.8, 0.2]],
    "rope": [[1.0, 1.0, 0.1, 0.0], [0.9, 0.7, 0.1]],
}
PROTOCOL = {"length": "symbols", "seeds": "0, 1", "begin token": "yes"}


def made_plan(
    out: Path, *, num_examples: int = 0, task: str = "copy", selected_by: str = "last"
) -> Plan:
    """Writes the records. Of 0 examples, intervals are of seeds alone: two give both ends."""
    cells = []
    for arm, of_seeds in MATCHES.items():
        for seed, values in enumerate(of_seeds):
            cell = Cell({AXIS: arm}, seed, f"{task}-{arm}{seed}", "e", task, 4, 1234)
            results = [
                {
                    "length": length,
                    "n_examples": num_examples,
                    "exact_match": value,
                    "exact_match_no_eos": value,
                    "nll": 1 - value,
                    "untrained_ids": 0.5 if arm == "none" and length == 8 else 0.0,
                    "untrained_distances": 0.0,
                    "exhaustive": True,
                }
                for length, value in zip(LENGTHS, values, strict=False)
            ]
            results.append({"split": "validation", "length": "", "loss": 0.25 * (1 + seed)})
            write_record(out, cell, Record(800, results, "", selected_by))
            cells.append(cell)
    plan = Plan(cells, PROTOCOL, {"python": "3.11"})
    write_plan(out, plan)
    return plan


def made_task(out: Path, *, num_examples: int = 0) -> Task:
    plan = made_plan(out, num_examples=num_examples)
    [task] = read_study(read_rows(out, plan.cells).rows, plan.axes)
    return task
