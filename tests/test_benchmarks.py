"""Benchmarks print what is true; how fast or good anything is they do not test."""

import pytest

from configs import banking77
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.data.examples import read_examples
from jaxformer.training.loop import train

pytest.importorskip("sklearn")
from benchmarks import text_classification

PLACES = ("bank", "card", "cash")


def examples(count, first=0):
    return [(f"my {PLACES[i % 3]} {i}", PLACES[i % 3]) for i in range(first, first + count)]


def test_the_baseline_learns_from_training_examples_alone():
    words = text_classification.WORDS["words, 1–2"]
    found = text_classification.baseline(examples(60), examples(9, 60), words)
    assert found.right == (9, 9)
    assert found.strength == 1  # the smallest of those that tie
    wrong = [(text, "none") for text, _ in examples(9, 60)]
    assert text_classification.baseline(examples(60), wrong, words) == (1, (0, 9))


def test_a_run_stands_beside_the_baseline(tmp_path, capsys):
    """Both are tested on all validation rows, the baseline first; a second run has no second."""
    rows = [f"{text},{name}\n" for text, name in examples(60)]
    (tmp_path / "a.csv").write_text("text,category\n" + "".join(rows))
    made = banking77.get_config()
    made.model.update(num_layers=1, d_model=8, num_heads=2, d_ff=16, max_length=8)
    made.data.update(path=str(tmp_path / "a.csv"), length=8)
    made.data.tokenizer.vocab_size = 260
    made.train.update(num_steps=2, batch_size=4)
    made.schedule.warmup_steps = 1
    made.mesh.data = 1
    cfg = RunConfig.from_config_dict(made)
    data = open_data(cfg, tmp_path / "run")
    sizes = {"vocab_size": 260, "steps_per_epoch": 10, "num_classes": 3}
    train(cfg.resolve(**sizes), data, tmp_path / "run")
    texts = {name: len(found) for name, found in read_examples(cfg).items()}
    assert texts == {"train": 54, "validation": 6}
    assert text_classification.main([str(tmp_path / "run")] * 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:]] == [
        *["logistic regression"] * 2,
        *[str(tmp_path / "run")] * 2,
    ]
    assert {line.split("|")[-2].strip() for line in lines[2:]} == {"6"}
    assert lines[4] == lines[5]
    assert "step 2, " in lines[4]
