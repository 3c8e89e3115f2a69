"""The suites of classifiers and masked language models, from files to tables."""

import csv
import types

import numpy as np
import pytest

from configs import banking77, masked_lm
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.evaluation.classification import class_records, class_table, macro_f1
from jaxformer.evaluation.run import evaluate
from jaxformer.evaluation.suite import load_suite
from tests import builders


def evaluated(made, text, tmp_path):
    """The results of the default suite on an untrained model, metric -> value."""
    path = tmp_path / "data"
    path.write_text(text)
    made.model.update(num_layers=1, d_model=8, num_heads=2, d_ff=16, max_length=16)
    made.data.update(path=str(path), length=8)
    made.data.tokenizer.vocab_size = 260
    cfg = RunConfig.from_config_dict(made)
    data = open_data(cfg, None)
    classes = len(data.classes)
    cfg = cfg.resolve(vocab_size=260, steps_per_epoch=100, num_classes=classes)
    model = builders.make_model(cfg.model)
    run = types.SimpleNamespace(
        model=model, tokenizer=data.tokenizer, config=cfg, step=3, weights="raw"
    )
    suite = load_suite("", cfg.data, cfg.objective.kind)
    found = evaluate(run, data, suite, tmp_path / "eval")
    assert found.samples == []
    with (tmp_path / "eval" / "results.csv").open() as file:
        values = {row["metric"]: float(row["value"]) for row in csv.DictReader(file)}
    return values, data, found.tables["Validation, step 3"]


def test_classification(tmp_path):
    lines = ["text,category", *(f"{'good' if i % 3 else 'bad'} film,{i % 3}" for i in range(60))]
    values, data, table = evaluated(banking77.get_config(), "\n".join(lines), tmp_path)
    assert set(values) == {"loss", "perplexity", "accuracy", "macro_f1"}
    assert 0 <= values["macro_f1"] <= values["accuracy"] < 1
    assert len(data.validation) == 6
    assert "macro_f1" in table
    assert "nats per example" in table
    with (tmp_path / "eval" / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    f1 = {row["class"]: float(row["value"]) for row in rows if row["metric"] == "f1"}
    assert list(f1) == list(data.classes) == ["0", "1", "2"]
    right = sum(
        float(row["value"]) * float(row["weight"]) for row in rows if row["metric"] == "recall"
    )
    assert right / 6 == pytest.approx(values["accuracy"])
    assert sum(float(row["weight"]) for row in rows if row["metric"] == "precision") == 6


def test_each_class_by_hand():
    """Right 2, 0, 0; predicted 3, 1, 0; true 2, 2, 0."""
    counts = np.array([[2, 0, 0], [3, 1, 0], [2, 2, 0]])
    rows = class_records(counts, ["a", "b", "never"])
    found = {(row["class"], row["metric"]): (row["value"], row["weight"]) for row in rows}
    assert found == {
        ("a", "precision"): (pytest.approx(2 / 3), 3),
        ("a", "recall"): (1, 2),
        ("a", "f1"): (pytest.approx(4 / 5), 2),
        ("b", "precision"): (0, 1),
        ("b", "recall"): (0, 2),
        ("b", "f1"): (0, 2),
        ("never", "precision"): (0, 0),
        ("never", "recall"): (0, 0),
        ("never", "f1"): (0, 0),
    }
    assert macro_f1(counts) == (pytest.approx(4 / 5), 2)
    low, high = (rows[0][name] for name in ("low", "high"))
    assert 0 < low < 2 / 3 < high < 1
    table = class_table(rows)
    assert table[0] == {
        "class": "a",
        "precision %": "66.7",
        "recall %": "100.0",
        "examples": "2",
        "f1 %": "80.0",
    }


def test_masked_lm(tmp_path):
    text = "".join(f"line {i} of the text\n" for i in range(60))
    values, _, table = evaluated(masked_lm.get_config(), text, tmp_path)
    assert "nats per token" in table
    assert set(values) == {"loss", "perplexity", "accuracy"}
    assert values["loss"] == pytest.approx(5.6, abs=2)
