"""Tables, plots and atomic writes."""

import csv
import json

import matplotlib.image
import numpy as np
import pytest

from jaxformer.evaluation import report

ROWS = [
    {"length": 0, "trained": True, "accuracy": 1.0},
    {"length": 10, "trained": False, "accuracy": 0.123456, "note": "a|b"},
]


def test_csv_keeps_full_precision_and_leaves_absent_values_empty(tmp_path):
    path = report.write_csv(tmp_path / "new" / "t.csv", ROWS)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[1] == {"length": "10", "trained": "False", "accuracy": "0.123456", "note": "a|b"}
    assert rows[0]["note"] == ""


def test_json_is_strict(tmp_path):
    path = report.write_json(tmp_path / "t.json", {"rows": ROWS, "std": float("nan"), "n": (1, 2)})
    read = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert read == {"rows": ROWS, "std": None, "n": [1, 2]}


def test_markdown_aligns_columns_and_escapes_bars():
    assert report.markdown(ROWS) == (
        "| length | trained | accuracy | note |\n"
        "| -----: | ------: | -------: | ---- |\n"
        "|      0 |     yes |        1 |      |\n"
        "|     10 |      no |   0.1235 | a\\|b |\n"
    )


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = report.write_atomic(tmp_path / "t.md", "old")
    with pytest.raises(TypeError):
        report.write_json(path, {"bad": object()})

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(report.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write_atomic(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["t.md"]
    assert path.read_text() == "old"


def coloured(path, hex_color: str) -> int:
    """The number of pixels of a colour."""
    pixels = np.round(matplotlib.image.imread(path)[..., :3] * 255).astype(int)
    wanted = [int(hex_color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels - wanted).max(-1) <= 3).sum())


def test_plot_by_length_draws_each_series(tmp_path):
    points = [(0, 1.0, 0.9, 1.0), (4, 0.5, 0.4, 0.6)]
    path = report.plot_by_length(
        tmp_path / "p.png",
        {"learned": points, "rope": [(k, v / 2, a / 2, b / 2) for k, v, a, b in points]},
        x_label="modifiers",
        y_label="accuracy",
        trained_up_to=3,
    )
    assert coloured(path, report.PALETTE[0]) > 50
    assert coloured(path, report.PALETTE[1]) > 50
    assert coloured(path, report.PALETTE[2]) == 0


def test_many_series_can_be_told_apart(tmp_path, monkeypatch):
    """After seven the colours come again with another line; the legend leaves the axes free."""
    figures = []
    monkeypatch.setattr(report, "_png", lambda figure: figures.append(figure) or b"")
    series = {f"scheme {n}": [(x, n, n, n) for x in (64, 128, 512)] for n in range(10)}
    report.plot_by_length(
        tmp_path / "p.png", series, x_label="", y_label="", trained_up_to=64, log_lengths=True
    )
    (axes,) = figures[0].axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines[:10]}
    assert len(looks) == 10
    assert axes.get_legend() is None
    assert len(figures[0].legends[0].get_texts()) == 11
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "512"]


def test_curves_from_metrics(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 1, "split": "train", "loss": 2.0, "accuracy": 0.1},
        {"step": 2, "split": "train", "loss": 1.0, "accuracy": 0.5},
        {"step": 1, "split": "eval", "loss": 2.1},
        {"step": 2, "split": "eval", "loss": 1.2},
    ]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "spl')
    assert report.read_metrics(metrics) == lines
    path = report.plot_curves(tmp_path / "c.png", metrics)
    assert coloured(path, report.PALETTE[0]) > 50
    assert coloured(path, report.PALETTE[1]) > 50


def test_damaged_lines_are_left_out_and_the_rest_is_drawn(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    good, odd = {"step": 2, "split": "eval", "loss": 1.5}, {"step": "3", "split": 1, "loss": "x"}
    lines = ['{"step": 1', json.dumps(good), '{"step": 2}', "[]", "", json.dumps(odd)]
    metrics.write_bytes("\n".join(lines).encode() + b'\n{"step": 4, "spl\xfft": "eval"}\n')
    assert report.read_metrics(metrics) == [good, odd]
    assert report.plot_curves(tmp_path / "c.png", metrics).stat().st_size > 0
    assert report.read_metrics(tmp_path / "absent.jsonl") == []
