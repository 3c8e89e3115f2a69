"""Published numbers beside ours."""

import dataclasses

import pytest

from jaxformer.errors import UserError
from jaxformer.experiments.publish import write_report
from jaxformer.experiments.reference import (
    check_reference,
    compare_tables,
    find_problem,
    read_reference,
)
from tests.experiments.made_results import made_plan, made_task

TEXT = """# From a paper.
task,arm,length,mean,std
copy,none,6,0.75,0.02
copy,none,8,0.15,0.05
copy,rotary,6,0.1,
copy,rope,6,0.25,
copy,rope,8,0.001,
sort,rope,8,1.0,
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "paper.csv"
    path.write_text(TEXT)
    return path


def test_ours_stands_beside_theirs_with_differences(file, tmp_path):
    task = made_task(tmp_path / "sweep")
    whole, by_length = compare_tables(read_reference(str(file)), task)
    assert [list(line.values()) for line in whole.lines] == [
        ["none", "none", "6, 8", "57.5", "45.0", "+12.5"],
        ["rope", "rope", "6, 8", "5.0", "12.6", "-7.5"],
    ]
    assert whole.note.startswith("From a paper.")
    assert whole.title == "Beside paper: exact match, end token included (%)"
    assert [list(line.values()) for line in by_length.lines] == [
        ["none", "6", "85.0", "75.0 ± 2.0", "+10.0", "yes"],  # at most .10
        ["none", "8", "30.0", "15.0 ± 5.0", "+15.0", "yes"],  # at most three deviations
        ["rope", "6", "10.0", "25.0", "-15.0", "no"],
        ["rope", "8", "0.0", "0.1", "-0.1", "yes"],
    ]


def test_no_length_in_both_is_said(file, tmp_path):
    file.write_text(TEXT.replace(",6,", ",60,").replace(",8,", ",80,"))
    (only,) = compare_tables(read_reference(str(file)), made_task(tmp_path / "sweep"))
    assert "No length is in both" in only.note
    assert only.lines[0]["lengths published"] == "60, 80"


def test_three_arms_have_a_rank_correlation(file, tmp_path):
    task = made_task(tmp_path / "sweep")
    more = (*task.arms, dataclasses.replace(task.arms[0], name="alibi", settings={}))
    file.write_text(TEXT + "copy,alibi,6,0.9,\ncopy,alibi,8,0.6,\n")
    whole, _ = compare_tables(read_reference(str(file)), dataclasses.replace(task, arms=more))
    assert "(Spearman): 0.87." in whole.note  # ours ties two: ranks 2.5, 1, 2.5 against 2, 1, 3


def test_an_arm_matches_by_what_it_is_called_before_what_it_sets_besides(file, tmp_path):
    task = made_task(tmp_path / "sweep")
    arm = dataclasses.replace(
        task.arms[1], name="rope+fraction=0.25", settings={"k": "rope+model.a.fraction=0.25"}
    )
    whole, _ = compare_tables(read_reference(str(file)), dataclasses.replace(task, arms=(arm,)))
    assert whole.lines[0]["published as"] == "rope"


def test_a_task_is_chosen_by_name(file, tmp_path):
    plan = made_plan(tmp_path / "sweep")
    reference = read_reference(f"{file}:sort")
    check_reference(reference, plan.cells)
    [table, _] = compare_tables(reference, made_task(tmp_path / "sweep"))
    assert [line["arm"] for line in table.lines] == ["rope"]
    file.write_text("arm,length,mean\nrope,8,0.5\n")  # of any task
    check_reference(read_reference(str(file)), plan.cells)


def test_what_cannot_be_compared_is_refused_before_training(file, tmp_path):
    cells = made_plan(tmp_path / "sweep").cells
    other = [dataclasses.replace(cell, task="reverse") for cell in cells]
    with pytest.raises(UserError, match=r"no task reverse in paper, say .*=paper:copy; it has"):
        check_reference(read_reference(str(file)), other)
    arms = [dataclasses.replace(cell, arm={"k": "fire"}) for cell in cells]
    with pytest.raises(UserError, match="none of the arms in paper, it has none, rotary, rope"):
        check_reference(read_reference(str(file)), arms)
    file.write_text(TEXT.replace("0.75", "75"))
    problem = find_problem(read_reference(str(file)), [made_task(tmp_path / "sweep")])
    assert "has mean 75 at length 6, exact_match is a share: give 0 to 1" in str(problem)


def test_a_report_is_written_before_a_bad_comparison_is_refused(file, tmp_path):
    """Nobody loses the tables of a day's training to a reference in per cent."""
    out = tmp_path / "sweep"
    plan = made_plan(out)
    file.write_text(TEXT.replace("0.75", "75"))
    with pytest.raises(UserError, match="is a share"):
        write_report(out, plan, read_reference(str(file)))
    assert "Beside" not in (out / "table.md").read_text()
    file.write_text(TEXT)
    text = write_report(out, plan, read_reference(str(file))).text
    assert "## Beside paper: exact match, end token included (%)" in text
    assert "| none | none         |" in text
    assert "Beside paper" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column arm"),
        ("arm,length\nrope,4\n", "has no column mean"),
        ("arm,length,mean\n", "has no rows"),
        ("arm,length,mean\nrope,four,0.5\n", "row 1 has length 'four', it takes a whole number"),
        ("arm,length,mean\nrope,4,0.5\nrope,5,\n", "row 2 has mean '', it takes a number"),
        ("arm,length,mean\nrope,4,nan\n", "row 1 has mean 'nan'"),
        ("arm,length,mean,std\nrope,4,0.5,x\n", "row 1 has std 'x'"),
        ("arm,length,mean\nrope,4\n", "row 1 has mean ''"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_bad_files_are_refused_in_one_line(text, words, file):
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        read_reference(str(file))
    assert words in str(caught.value)
    assert caught.value.where == str(file)


def test_names_and_tasks_that_are_not_there(file):
    with pytest.raises(UserError, match="one of kazemnejad2023"):
        read_reference("nobody1999")
    with pytest.raises(UserError, match=r"choose from copy, sort"):
        read_reference(f"{file}:merge")


def test_the_reference_that_is_shipped():
    """A few values of the published files, and what they say of the arms."""
    reference = read_reference("kazemnejad2023")
    values = {(r.task, r.arm, r.length): r for r in reference.rows}
    assert len(values) == len(reference.rows) == 1130
    assert len(reference.tasks) == 12
    assert {r.seeds for r in reference.rows} == {3}
    assert {r.arm for r in reference.rows} == {"none", "t5", "alibi", "rope", "sinusoidal"}
    first = values["pcfg_productivity", "sinusoidal", 9]
    assert (first.mean, first.std) == (0.4926, 0.0184)
    assert values["copy_same", "none", 40].mean > 0.9
    assert values["copy_same", "rope", 21].mean < 0.01
    assert "Kazemnejad et al. 2023" in reference.remarks
