"""The suites of classifiers and masked language models, from files to tables."""

import csv
import types

import pytest

from configs import banking77, masked_lm
from jaxformer.config import RunConfig
from jaxformer.data import open_data
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
    run = types.SimpleNamespace(model=model, tokenizer=data.tokenizer, config=cfg, step=3)
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


def test_masked_lm(tmp_path):
    text = "".join(f"line {i} of the text\n" for i in range(60))
    values, _, table = evaluated(masked_lm.get_config(), text, tmp_path)
    assert "nats per token" in table
    assert set(values) == {"loss", "perplexity", "accuracy"}
    assert values["loss"] == pytest.approx(5.6, abs=2)
