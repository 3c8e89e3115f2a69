"""The figure: who is drawn how, and the cases that have little to draw."""

import dataclasses
import io
import math

import matplotlib.image
import numpy as np
import pytest

from jaxformer.evaluation.report import PALETTE
from jaxformer.experiments import figure
from jaxformer.experiments.study import Point
from tests.experiments.made_results import made_task


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return made_task(tmp_path_factory.mktemp("figure"))


def draw(*tasks, metric="", trained=(4,), stamp=""):
    return figure.draw(tasks, metric, length_name="symbols", trained_up_to=trained, stamp=stamp)


def legend(drawn):
    return [text.get_text() for text in drawn.legends[0].get_texts()]


def test_seeds_are_thin_means_thick_and_failures_dotted(task):
    drawn = draw(task)
    [axes] = drawn.axes
    lines = {"-": [], ":": []}
    for line in axes.lines:
        if line.get_linewidth() == 0.8:
            lines[line.get_linestyle()].append(line)
    assert (len(lines["-"]), len(lines[":"])) == (3, 1)
    assert list(lines[":"][0].get_ydata()) == [90, 70, 10]  # rope's seed 1, without length 8
    thick = [line for line in axes.lines if line.get_linewidth() == 2.2]
    assert [list(line.get_ydata()) for line in thick] == [
        pytest.approx([100, 99.5, 85, 30]),
        pytest.approx([95, 85, 10, 0]),
    ]
    assert [line.get_color() for line in thick] == list(PALETTE[:2])
    assert len({line.get_marker() for line in thick}) == 2
    assert legend(drawn) == [
        "none",
        "rope (id_failed 1/2)",
        "one seed",
        "… that failed in distribution",
        "95 % interval of the mean",
        "longest in training: 4",
    ]
    assert axes.get_xlabel() == "symbols"
    assert axes.get_ylabel() == "exact match, end token included (%)"


def test_the_band_is_the_interval(task):
    [axes] = draw(task).axes
    band = axes.collections[0].get_paths()[0].vertices
    assert {(x, round(y, 6)) for x, y in band if x == 8} == {(8, 20), (8, 40)}


def test_the_training_lengths_are_grey_up_to_a_line(task):
    [axes] = draw(task).axes
    [zone] = [patch for patch in axes.patches if patch.get_alpha() == 0.07]
    assert zone.get_x() + zone.get_width() == 4
    assert any(list(line.get_xdata()) == [4, 4] for line in axes.lines)
    assert not draw(task, trained=()).axes[0].patches
    assert not draw(task, trained=(1,)).axes[0].patches  # none of the tested ones


def many(task, count, lengths=(2, 4, 6)):
    """The same with more arms of one seed each."""
    points = {n: Point(0.5, 0) for n in lengths}
    arm = dataclasses.replace(task.arms[0], learned={(0, 0): True})
    arm = dataclasses.replace(arm, by_length={"exact_match": {(0, 0): points}})
    arms = tuple(dataclasses.replace(arm, name=f"arm {n}") for n in range(count))
    return dataclasses.replace(task, arms=arms, lengths=lengths)


def test_nine_arms_can_be_told_apart_without_colour_or_by_it(task):
    drawn = draw(many(task, 9))
    thick = [line for line in drawn.axes[0].lines if line.get_linewidth() == 2.2]
    looks = {(line.get_color(), line.get_linestyle()) for line in thick}
    shapes = {(line.get_marker(), line.get_linestyle()) for line in thick}
    assert len(looks) == len(shapes) == 9
    assert "one seed" not in legend(drawn)


def test_one_length_has_arms_side_by_side(task):
    drawn = draw(dataclasses.replace(task, lengths=(6,)))
    [axes] = drawn.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["none", "rope"]
    assert axes.get_xlabel() == "symbols: 6"
    means = [line.get_ydata()[0] for line in axes.lines if line.get_markersize() == 8]
    assert means == pytest.approx([85, 10])
    alone = draw(many(task, 1, (6,)))
    assert legend(alone) == ["95 % interval"]


def test_lengths_that_double_have_a_log_axis_and_missing_values_are_left_out(task):
    lengths = (64, 128, 256, 512)
    made = many(task, 1, lengths)
    made.arms[0].by_length["exact_match"][0, 0][256] = Point(math.nan, 0)
    [axes] = draw(made, trained=(64,)).axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "256", "512"]
    [mean] = [line for line in axes.lines if line.get_linewidth() == 2.2]
    assert list(mean.get_xdata()) == [64, 128, 512]
    assert draw(task).axes[0].get_xscale() == "linear"


def test_a_mean_over_what_is_not_a_number_is_not_drawn(task):
    for run in task.arms[0].runs[:1]:
        task.arms[0].by_length["exact_match"][run][6] = Point(math.nan, 0)
    [axes] = draw(task).axes
    first = next(line for line in axes.lines if line.get_linewidth() == 2.2)
    assert 6 not in list(first.get_xdata())
    [axes] = draw(dataclasses.replace(task, lengths=(6,))).axes
    assert len([line for line in axes.lines if line.get_markersize() == 8]) == 1


def test_tasks_are_panels_and_a_stamp_is_printed(task):
    other = dataclasses.replace(task, name="sort")
    drawn = draw(task, other, task, stamp="selected out of distribution")
    assert [axes.get_title() for axes in drawn.axes] == ["copy", "sort", "copy"]
    assert drawn.get_suptitle() == "selected out of distribution"
    assert legend(drawn)[1] == "rope (id_failed 3/6)"


def test_files_are_the_same_each_time_and_not_blank(task):
    """And nothing of the drawing lies outside of the picture."""
    png = figure.save(draw(task), "png")
    assert png == figure.save(draw(task), "png")
    pixels = matplotlib.image.imread(io.BytesIO(png))[..., :3]
    for edge in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]):
        assert np.ptp(edge) < 0.02
    for color in PALETTE[:2]:
        wanted = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (np.abs(pixels - wanted).max(-1) < 0.02).sum() > 100
    svg = figure.save(draw(task), "svg")
    assert svg == figure.save(draw(task), "svg")
    assert b"<dc:date>" not in svg
