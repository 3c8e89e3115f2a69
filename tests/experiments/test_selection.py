"""Which checkpoint is evaluated: of one short run, by every rule."""

import csv

import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError
from jaxformer.experiments.axes import parse_axis
from jaxformer.experiments.cells import plan
from jaxformer.experiments.results import folder_of, read_record
from jaxformer.experiments.selection import best_beyond, check_flags
from jaxformer.experiments.sweep import run_sweep
from tests.experiments import tiny_sweep


def jobs(folder, select, *axes):
    values = tiny_sweep.values(folder)
    values["model"]["position"]["kind"] = "none"  # which has length 16
    values["schedule"]["peak_value"] = 0.5  # so that loss goes up and down
    values["train"] |= {"checkpoint_every": 1, "keep_latest": 2, "keep_best": 1}
    how = {"suite": str(folder / "suite.py"), "lengths": "8,16", "select": select}
    return plan(values, [parse_axis(axis) for axis in axes], 1, **how)


def test_every_rule_on_one_run(tmp_path):
    tiny_sweep.write_inputs(tmp_path)
    out, steps = tmp_path / "out", {}
    for select in ("last", "id_validation", "ood"):
        [job] = jobs(tmp_path, select)
        text = run_sweep([job], out, select).text
        assert text.count("selected out of distribution") == (select == "ood")
        record = read_record(out, job.cell)
        assert record is not None
        assert record.selected_by == select
        steps[select] = record.step
    folder = folder_of(out, job.cell)
    checkpoints = Checkpoints(folder, read_only=True)
    kept, best = checkpoints.steps(), checkpoints.best_step()
    checkpoints.close()
    beyond = {}
    for step in kept:
        with (folder / "eval" / f"step_{step}" / "results.csv").open() as file:
            [row] = [
                r for r in csv.DictReader(file) if (r["metric"], r["length"]) == ("loss", "16")
            ]
        beyond[step] = float(row["value"])
    assert len(kept) >= 2
    assert steps == {"last": 4, "id_validation": best, "ood": min(beyond, key=beyond.__getitem__)}


def test_each_rule_is_another_evaluation_of_the_same_cell(tmp_path):
    tiny_sweep.write_inputs(tmp_path)
    cells = [jobs(tmp_path, select)[0].cell for select in ("last", "id_validation", "ood")]
    assert len({cell.name for cell in cells}) == 1
    assert len({cell.evaluation for cell in cells}) == 3


@pytest.mark.parametrize(
    ("select", "axis", "where", "words"),
    [
        ("id_validation", "train.keep_best=0", "train.keep_best", "set --config.train.keep_best=1"),
        ("ood", "train.keep_latest=1", "train.keep_latest", "is below 2"),
        ("id_validation", "train.checkpoint_every=0", "train.checkpoint_every", "is 0 while"),
    ],
)
def test_runs_that_keep_no_checkpoints_to_choose_from_are_refused(
    select, axis, where, words, tmp_path
):
    tiny_sweep.write_inputs(tmp_path)
    with pytest.raises(UserError) as caught:
        jobs(tmp_path, select, axis)
    assert caught.value.where == where
    assert words in str(caught.value)


def test_test_results_choose_nothing_unless_allowed():
    with pytest.raises(UserError, match="--allow_ood_selection"):
        check_flags("ood", False)
    check_flags("ood", True)
    check_flags("id_validation", False)
    with pytest.raises(UserError, match="choose from last, id_validation, ood"):
        check_flags("best", True)


def test_the_best_beyond_training_by_hand():
    def rows(*matches):
        return [{"length": n, "exact_match": m} for n, m in zip((4, 6, 8), matches, strict=True)]

    results = {10: rows(1.0, 0.5, 0.5), 20: rows(0.0, 0.9, 0.3), 30: rows(1.0, 0.6, 0.6)}
    assert best_beyond(results, 4) == 20  # .6, as 30, but before it
    assert best_beyond({10: rows(1, 0, 0), 20: rows(0, 0, 0.1)}, 4) == 20
    losses = {10: [{"length": 8, "loss": 2.0}], 20: [{"length": 8, "loss": 1.0}]}
    assert best_beyond(losses, 4) == 20
    with pytest.raises(UserError, match="no length is beyond training"):
        best_beyond({10: rows(1, 1, 1)}, 8)
