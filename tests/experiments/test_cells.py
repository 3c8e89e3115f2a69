"""Axes and cells: what a grid is, what names a cell, and what is refused before any is trained."""

import hashlib
import itertools
import json

import pytest

from configs.lengths import addition, copy
from jaxformer.data import open_data
from jaxformer.errors import UserError
from jaxformer.experiments.axes import field_type, parse_axis
from jaxformer.experiments.cells import plan
from jaxformer.experiments.protocol import describe
from jaxformer.training.loop import train
from tests.experiments import tiny_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cells")
    tiny_sweep.write_inputs(path)
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("model.position.kind=none,rope", ["none", "rope"]),
        ("model.num_layers=1, 2", [1, 2]),
        ("schedule.peak_value=1,1e-3,1e+2", [1.0, 0.001, 100.0]),
        ("model.tie_embeddings=true,False", [True, False]),
        ("model.layer_pattern='rope:window=2, none',none", ["rope:window=2, none", "none"]),
        ("data.path=f(a,b).txt", ["f(a,b).txt"]),
        ("model.position.source.abacus.digits=(4,5),[6],()", [(4, 5), (6,), ()]),
    ],
)
def test_values_are_split_at_top_level_commas_and_take_the_fields_type(text, values):
    axis = parse_axis(text)
    assert axis.field == text.split("=")[0]
    found = [setting.changes for setting in axis.settings]
    assert found == [((axis.field, value),) for value in values]
    for value, [(_, typed)] in zip(values, found, strict=True):
        assert type(typed) is type(value)


def test_a_value_may_set_more_fields():
    plain, more = parse_axis(
        "model.position.kind=t5,t5+model.position.t5.max_distance=32+model.d_model=8"
    ).settings
    assert plain.changes == (("model.position.kind", "t5"),)
    assert more.text == "t5+model.position.t5.max_distance=32+model.d_model=8"
    assert more.changes == (
        ("model.position.kind", "t5"),
        ("model.position.t5.max_distance", 32),
        ("model.d_model", 8),
    )


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("model.position.kind", "--axis", "gives no values"),
        ("model.num_layers=", "--axis", "gives no values"),
        ("model.num_layer=1", "model.num_layer", "did you mean model.num_layers"),
        ("modle.num_layers=1", "modle", "did you mean model"),
        ("model.num_layers.x=1", "model.num_layers.x", "is not a field"),
        ("model.prefix=1", "model.prefix", "is not a field"),
        ("model.position=rope", "model.position", "is a section"),
        ("model.num_layers=1,two", "model.num_layers", "'two', it takes a whole number"),
        ("model.num_layers=1.5", "model.num_layers", "a whole number"),
        ("model.num_layers=1,", "model.num_layers", "a whole number"),
        ("schedule.peak_value=big", "schedule.peak_value", "a number"),
        ("model.residual=2", "model.residual", "true or false"),
        ("model.num_layers=1,2,1", "model.num_layers", "'1' twice"),
        ("model.d_model=8+model.d_model=16", "model.d_model", "set twice"),
        ("model.d_model=8+model.num_head=2", "model.num_head", "did you mean model.num_heads"),
    ],
)
def test_bad_axes_are_refused(text, where, words):
    with pytest.raises(UserError) as caught:
        parse_axis(text)
    assert caught.value.where == where
    assert words in str(caught.value)


def test_a_field_has_the_type_that_its_section_declares():
    assert field_type("schedule.peak_value") is float
    assert field_type("seed") is int


def test_two_axes_form_a_grid_with_seeds_in_turn(folder):
    axes = "model.position.kind=none,rope", "model.d_model=8,16"
    jobs = tiny_sweep.jobs(folder, *axes, seeds=2)
    found = [(*job.cell.arm.values(), job.cell.seed) for job in jobs]
    kinds = list(itertools.product(("none", "rope"), ("8", "16"), (0, 1)))
    assert found == kinds
    assert list(jobs[0].cell.arm) == ["model.position.kind", "model.d_model"]
    for job, (kind, width, seed) in zip(jobs, kinds, strict=True):
        cfg = job.config
        assert (cfg.model.position.kind, cfg.model.d_model) == (kind, int(width))
        assert cfg.seed == seed
        assert cfg.model.vocab_size > 0  # resolved
    assert len({job.cell.name for job in jobs}) == 8


def test_seeds_follow_the_configs_own(folder):
    values = tiny_sweep.values(folder) | {"seed": 7}
    assert [job.config.seed for job in plan(values, [], 3)] == [7, 8, 9]


def test_the_name_is_a_hash_of_the_resolved_config_and_the_data(folder):
    [job] = tiny_sweep.jobs(folder)
    name = job.cell.name

    def named(changes):
        values = tiny_sweep.values(folder)
        for path, value in changes.items():
            *above, last = path.split(".")
            section = values
            for part in above:
                section = section[part]
            section[last] = value
        return plan(values, [], 1, suite=str(folder / "suite.py"))[0].cell.name

    assert named({}) == name
    assert named({"seed": 1}) != name
    assert named({"train.num_steps": 7}) != name
    assert named({"schedule.decay_steps": 4}) == name  # what it is resolved to anyway
    try:
        (folder / "text.txt").write_text(tiny_sweep.TEXT[::-1])  # of the same characters
        assert named({}) != name
    finally:
        (folder / "text.txt").write_text(tiny_sweep.TEXT)


def test_the_name_stays_the_same_from_one_version_to_the_next(folder):
    """By the formula written out: sha256 of JSON with sorted keys; it must not depend on more."""
    [job] = tiny_sweep.jobs(folder)
    data = open_data(job.config, None).train.fingerprint
    parts = json.dumps(["cell", job.config.to_dict(), data], sort_keys=True)
    assert job.cell.name == hashlib.sha256(parts.encode()).hexdigest()[:16]


def test_a_teacher_counts_by_what_it_holds(folder, tmp_path):
    """Not by where it lies; one that does not fit is refused before any cell is trained."""
    [job] = tiny_sweep.jobs(folder)

    def named(teacher):
        values = tiny_sweep.values(folder)
        values["objective"]["distillation"]["teacher"] = str(teacher)
        return plan(values, [], 1, suite=str(folder / "suite.py"))[0].cell.name

    values = tiny_sweep.values(folder)
    values["schedule"]["peak_value"] = 1e-46  # 0 in float32: no parameter moves
    runs = {"1": (1, 0.0, 2), "2": (1, 0.0, 3), "capped": (1, 5.0, 2), "other": (2, 0.0, 2)}
    for name, (values["seed"], values["model"]["logit_softcap"], steps) in runs.items():
        values["train"]["num_steps"] = steps
        cfg = plan(values, [], 1, suite=str(folder / "suite.py"))[0].config
        train(cfg, open_data(cfg, tmp_path / name), tmp_path / name)
    one = named(tmp_path / "1")
    assert named(tmp_path / "2") == one  # the same parameters
    assert len({one, named(tmp_path / "capped"), named(tmp_path / "other"), job.cell.name}) == 4
    (tmp_path / "1").rename(tmp_path / "moved")
    assert named(tmp_path / "moved") == one
    with pytest.raises(
        UserError, match=r"distillation.teacher: .*none cannot be read .* \(in the cell .*teacher="
    ):
        tiny_sweep.jobs(folder, f"objective.distillation.teacher={tmp_path / 'none'}")


def test_another_suite_is_the_same_cell_but_another_evaluation(folder):
    [one], [other] = tiny_sweep.jobs(folder), tiny_sweep.jobs(folder, lengths="4,16")
    assert one.cell.name == other.cell.name
    assert one.cell.evaluation != other.cell.evaluation
    assert other.suite.lengths == "4,16"


@pytest.mark.parametrize(
    ("axes", "where", "words"),
    [
        (["model.num_heads=2,3"], "model.d_model", "(in the cell model.num_heads=3)"),
        (["model.position.kind=rope,roap"], "model.position.kind", "in the cell"),
        (["data.path=none.txt"], "none.txt", "in the cell data.path=none.txt"),
        (["model.vocab_size=5"], "model.vocab_size", "too small"),
        (["mesh.data=3"], "mesh", "8 devices"),
        (["seed=1,2"], "--axis", "--seeds"),
        (["model.d_model=8", "model.d_model=16"], "--axis", "model.d_model twice"),
        (
            ["model.d_model=8+model.num_heads=1", "model.num_heads=2"],
            "--axis",
            "on model.d_model and on model.num_heads",
        ),
        (["schedule.decay_steps=0,4"], "--axis", "one and the same cell"),
    ],
)
def test_cells_that_cannot_be_are_refused(axes, where, words, folder):
    with pytest.raises(UserError) as caught:
        tiny_sweep.jobs(folder, *axes)
    assert caught.value.where == where
    assert words in str(caught.value)


def test_bad_lengths_and_suites_are_refused(folder):
    with pytest.raises(UserError, match="lengths"):
        tiny_sweep.jobs(folder, lengths="8:4")
    with pytest.raises(UserError, match="suite"):
        plan(tiny_sweep.values(folder), [], 1, suite="none")


def test_every_arm_has_ids_enough_for_its_task():
    axis = parse_axis("model.position.source.range=13,7")
    with pytest.raises(UserError, match=r"range: is 7, .* \(in the cell .*range=7\)"):
        plan(addition.get_config().to_dict(), [axis], 1)


def test_the_protocol_says_whether_arms_train_alike():
    base = copy.get_config().to_dict()
    for axis, words in (
        ("model.position.kind=none,rope", "share"),
        ("model.num_layers=1,2", "share"),
    ):
        assert words in describe(plan(base, [parse_axis(axis)], 1, lengths="4"), "last")["budget"]
    jobs = plan(base, [parse_axis("schedule.peak_value=1e-3,2e-3")], 1, lengths="4")
    assert "arms train differently" in describe(jobs, "last")["budget"]
