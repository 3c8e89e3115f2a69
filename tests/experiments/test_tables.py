"""Tables of made-up results, by hand: no examples to draw, so that two seeds give both ends."""

import dataclasses

import pytest

from jaxformer.evaluation import report
from jaxformer.evaluation.statistics import wilson
from jaxformer.experiments.results import read_rows
from jaxformer.experiments.rows import metrics, widened
from jaxformer.experiments.study import Point, read_study, short
from jaxformer.experiments.summary import over_tasks
from jaxformer.experiments.tables import task_tables
from tests.experiments.made_results import AXIS, made_plan, made_task


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return made_task(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def tables(task):
    return {t.title: t for t in task_tables(task, {"none": 1234, "rope": 1234})}


def test_the_summary_flags_seeds_that_did_not_learn_the_task(tables):
    table = tables["Exact match, end token included (%), all seeds"]
    assert report.markdown(table.lines) == (
        "| arm  | seeds | learned | flag      | in distribution | beyond training "
        "| 95 % interval |  std |  min |  max |  IQM | L50 |        L90 |        L99 "
        "| parameters |\n"
        "| ---- | ----: | ------: | --------- | --------------: | --------------: "
        "| ------------- | ---: | ---: | ---: | ---: | --: | ---------: | ---------: "
        "| ---------: |\n"
        "| none |     2 |     2/2 |           |            99.8 |            57.5 "
        "| [50.0, 65.0]  | 10.6 | 50.0 | 65.0 | 57.5 |   6 | 4 (4 to 6) |          4 "
        "|      1,234 |\n"
        "| rope |     2 |     1/2 | id_failed |            90.0 |             5.0 "
        "| –             |    – |  5.0 |  5.0 |  5.0 |   4 | 2 (2 to 4) | – (– to 4) "
        "|      1,234 |\n"
    )
    assert "L50, L90, L99: longest tested length" in table.note


def test_seeds_that_learned_the_task_have_their_own_tables(tables):
    table = tables["Exact match, end token included (%), seeds that learned the task"]
    assert [(line["arm"], line["seeds"]) for line in table.lines] == [("none", "2"), ("rope", "1")]
    assert [line["in distribution"] for line in table.lines] == ["99.8", "100.0"]
    name = "By length, seeds that learned the task: exact match, end token included"
    rope = tables[f"{name} (%, mean and 95 % interval)"].lines[1]
    assert rope == {
        "arm": "rope",
        "seeds": "1",
        "2*": "100.0",
        "4*": "100.0",
        "6*": "10.0",
        "8*": "0.0",
    }


def test_arms_by_lengths(tables):
    table = tables["By length: exact match, end token included (%, mean and 95 % interval)"]
    assert [list(line.items()) for line in table.lines] == [
        [
            ("arm", "none"),
            ("seeds", "2"),
            ("2*", "100.0 [100.0, 100.0]"),
            ("4*", "99.5 [99.0, 100.0]"),
            ("6*", "85.0 [80.0, 90.0]"),
            ("8*", "30.0 [20.0, 40.0]"),
        ],
        [
            ("arm", "rope (id_failed)"),
            ("seeds", "2"),
            ("2*", "95.0 [90.0, 100.0]"),
            ("4*", "85.0 [70.0, 100.0]"),
            ("6*", "10.0 [10.0, 10.0]"),
            ("8*", "0.0"),
        ],
    ]
    assert table.note == (
        "In distribution: 2 to 4. * few prompts exist, or few are likely: training had them too. "
        "id_failed: below 99 % in distribution; such a run says nothing of longer inputs."
    )


def test_many_lengths_go_down_the_page(task):
    lengths = tuple(range(2, 22, 2))
    points = dict.fromkeys(lengths, Point(1.0, 1000))
    arm = dataclasses.replace(task.arms[0], by_length={"exact_match": {(0, 0): points}})
    buckets = dict.fromkeys(lengths, "ood") | {2: "id"}
    long = dataclasses.replace(task, arms=(arm,), lengths=lengths, buckets=buckets)
    [table] = [t for t in task_tables(long, {}) if t.title.startswith("By length: exact match,")]
    assert [line["length"] for line in table.lines][3:5] == ["8*", "10"]
    assert [line[""] for line in table.lines] == ["in training", *[""] * 9]
    assert {line["none"] for line in table.lines} == {"100.0 [99.6, 100.0]"}


def test_pairs_of_arms_are_compared_where_both_were_tested(tables):
    """Seed 1 of rope lacks length 8: one pair is left over both lengths, (.65 - .05)."""
    [line] = tables["Pairs of arms beyond training: exact match, end token included"].lines
    assert line == {
        "arm": "none",
        "minus": "rope",
        "paired seeds": "1",
        "difference": "+60.0",
        "95 % interval": "–",
        "p": "1",
    }


def test_what_was_never_trained_is_told_of_arms_that_meet_it(tables):
    table = tables["By length: tokens with ids that training never had (%)"]
    assert table.lines == [
        {"arm": "none", "seeds": "2", "2*": "0.0", "4*": "0.0", "6*": "0.0", "8*": "50.0"}
    ]
    assert not any("distances" in title for title in tables)  # nothing anywhere


def test_every_seed_has_its_own_interval(tmp_path):
    """Wilson's, of 1,000 examples that were drawn, at lengths with few prompts too."""
    task = made_task(tmp_path, num_examples=1000)
    tables = {t.title: t for t in task_tables(task, {})}
    name = "Every seed: exact match, end token included (%, Wilson's 95 % interval)"
    first, *_, last = tables[name].lines
    low, high = wilson(900, 1000)
    assert first["6*"] == f"90.0 [{100 * low:.1f}, {100 * high:.1f}]" == "90.0 [88.0, 91.7]"
    assert (last["seed"], last["8*"]) == ("1 id_failed", "")
    by_length = tables["By length: exact match, end token included (%, mean and 95 % interval)"]
    assert "At least 1,000 examples a length and seed." in by_length.note
    assert by_length.lines[1]["8*"] == "0.0 [0.0, 0.4]"  # of one seed: Wilson's, not [0, 0]


def test_other_metrics_have_deviations(tables):
    losses = tables["By length: loss in nats a token (mean ± deviation)"]
    assert losses.lines[0]["8*"] == "0.700 ± 0.141"
    [none, _] = tables["Validation, in distribution (mean ± deviation)"].lines
    assert none == {"arm": "none", "seeds": "2", "loss in nats a token": "0.375 ± 0.177"}


def test_over_tasks_arms_are_ranked_by_task_and_seed(tmp_path):
    """none beats rope by both tasks' seed 0; rope's seed 1 is not complete."""
    rows = []
    for name in ("copy", "sort"):
        plan = made_plan(tmp_path / name, task=name)
        rows += read_rows(tmp_path / name, plan.cells).rows
    tasks = read_study(rows, [AXIS])
    [table] = over_tasks(tasks)
    assert [list(line.values()) for line in table.lines] == [
        ["copy", "57.5", "5.0"],
        ["sort", "57.5", "5.0"],
        ["mean reciprocal rank", "1.000", "0.500"],
    ]
    assert over_tasks(tasks[:1]) == []


def test_long_rows_become_wide():
    of = {"split": "test", "length": 4, "bucket": "id"}
    long = [
        of | {"metric": "exact_match", "value": 0.5, "low": 0.4, "high": 0.6, "weight": 200.0},
        of | {"metric": "nll", "value": None, "low": "", "high": "", "weight": 900.0},
        of | {"metric": "nll", "value": 2.0, "weight": 900.0, "length": 6, "bucket": "ood"},
    ]
    assert widened(long) == [
        of | {"exact_match": 0.5, "n_examples": 200, "nll": None, "n_tokens": 900},
        of | {"length": 6, "bucket": "ood", "nll": 2.0, "n_tokens": 900},
    ]
    wide = [{"length": 4, "loss": 1.0, "exact_match": 0.5, "note": "a"}]
    assert widened(wide) == wide
    assert metrics(wide, ()) == ["exact_match", "loss"]


def test_names_of_arms_are_short():
    assert short("t5+model.position.t5.max_distance=32") == "t5+max_distance=32"
    rows = [
        {"task": "t", "a.kind": k, "a.d_model": d, "seed": 0, "data_seed": 0, "length": 1}
        | {"split": "test", "positions": "trained", "bucket": "", "loss": 1.0}
        for k in ("x", "y")
        for d in ("8", "16")
    ]
    [task] = read_study(rows, ["a.kind", "a.d_model", "a.c"])
    assert task.arms[1].name == "kind=x, d_model=16"


@pytest.mark.parametrize(
    ("values", "learned"),
    [((1.0, 0.98), True), ((1.0, 0.979), False), ((float("nan"), 1.0), False), ((), None)],
)
def test_a_run_has_learned_its_task_at_99_per_cent_in_distribution(values, learned):
    """Over its lengths in distribution, whatever it does beyond them."""
    rows = [
        {"task": "t", "k": "x", "seed": 0, "data_seed": 0, "split": "test", "positions": "trained"}
        | {"length": length, "bucket": "id" if length < 9 else "ood", "exact_match": value}
        for length, value in [*enumerate(values), (9, 1.0)]
    ]
    [task] = read_study(rows, ["k"])
    assert task.arms[0].learned == {(0, 0): learned}
