"""The report on a run's heads: its numbers are those of the weights, its files are there."""

import csv

import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer.analysis.attention import examine, gradient_norms, write_report
from jaxformer.config import RunConfig
from jaxformer.data import open_data, resolve
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.tasks.agreement import Agreement
from jaxformer.data.tasks.grammar import NOUNS
from jaxformer.errors import UserError
from jaxformer.evaluation.lengths import LengthExamples
from jaxformer.models import build
from jaxformer.nn.cache import init_cache
from jaxformer.run import Run
from tests.builders import random_params


def make_run(**model):
    """A tiny model of agreement with random parameters, as if trained."""
    c = base.get_config()
    c.model.update({"d_model": 16, "num_heads": 2, "max_length": 24, "num_layers": 2} | model)
    c.data.length, c.schedule.warmup_steps = 19, 1
    c.data.agreement.num_examples = 50
    c.eval.batch_size = 8
    cfg = RunConfig.from_config_dict(c)
    data = open_data(cfg, None)
    cfg = resolve(cfg, data)
    model = nnx.merge(nnx.split(build(cfg.model))[0], random_params(cfg.model))
    return Run(model, data.tokenizer, cfg, 7, data.train.fingerprint), data


def test_the_weight_on_subject_and_distractors(tmp_path):
    """Against the model's own weights, sentence by sentence, in words."""
    run, data = make_run()
    assert isinstance(data.task, Agreement)
    examples = LengthExamples(data.task, 2, 12, seed=0)
    rows, _ = examine(run, examples, 12)
    found = {(r["metric"], r["layer"], r["head"]): r["value"] for r in rows if r["head"] != ""}
    test = data.task.evaluation(2, 12, 0)
    nouns = {word for pair in NOUNS for word in pair}
    subject, others, even = [], [], []
    for row, n in zip(test.sentences.tokens_BL, test.prefix_lengths_B, strict=True):
        prefix = row[:n]
        out = run.model(prefix[None], capture=("attention_weights",))
        last = np.asarray(out.captured["attention_weights"])[:, 0, :, -1]
        places = [i for i, t in enumerate(prefix) if run.tokenizer.token(t) in nouns]
        subject.append(last[..., places[0]])
        even.append(1 / n)
        if places[1:]:
            others.append(last[..., places[1:]].mean(-1))
    for layer, head in np.ndindex(2, 2):
        at = layer, head
        np.testing.assert_allclose(found["subject", *at], np.mean(subject, 0)[at], rtol=1e-5)
        np.testing.assert_allclose(found["distractor", *at], np.mean(others, 0)[at], rtol=1e-5)
        np.testing.assert_allclose(found["even", *at], np.mean(even), rtol=1e-6)


def test_only_examples_that_count_are_looked_at():
    """So many as asked for; a task of files fills up its batches with rows of weight 0."""
    run, data = make_run()
    assert isinstance(data.task, Agreement)
    twelve, five = (LengthExamples(data.task, 2, n, seed=0) for n in (12, 5))

    class First:
        length = 2

        def __init__(self, count):
            self.count = count

        def batches(self, batch_size, bound):
            for batch in twelve.batches(batch_size, bound):
                counted_B1 = (batch["rows"] < self.count)[:, None]
                yield {**batch, "weights": batch["weights"] * counted_B1}

    expected, _ = examine(run, five, 5)
    for found, _ in (examine(run, twelve, 5), examine(run, First(5), 12)):
        for one, other in zip(found, expected, strict=True):
            assert one == other | {"value": pytest.approx(other["value"], rel=1e-4)}
    assert examine(run, First(0), 12) == ([], {})


@pytest.mark.parametrize("scan_layers", [False, True])
def test_the_report(tmp_path, scan_layers):
    run, data = make_run(scan_layers=scan_layers)
    paths = write_report(run, tmp_path / "out", (0, 1), 10)
    assert [path.name for path in paths] == [
        "attention.csv",
        "table.md",
        "length_0.png",
        "length_1.png",
    ]
    with paths[0].open() as file:
        rows = list(csv.DictReader(file))
    assert {row["length"] for row in rows} == {"0", "1"}
    names = {"entropy", "sink", "previous_token", "subject", "distractor", "even", "distance"}
    assert names | {"mean_cosine"} <= {row["metric"] for row in rows}
    profile = [float(r["value"]) for r in rows if r["metric"] == "distance" and r["length"] == "1"]
    assert 0 < min(profile) < max(profile) < 1
    text = paths[1].read_text()
    assert "## Heads at length 1" in text
    norms = gradient_norms(run, next(evaluation_batches(data.validation, 8)))
    assert set(norms) == {"embedding", "position", "layers/0", "layers/1", "final_norm"}
    assert all(norm > 0 for norm in norms.values())
    assert paths[2].read_bytes().startswith(b"\x89PNG")


def test_an_lstm_has_no_heads(tmp_path):
    run, _ = make_run(architecture="lstm", num_heads=4)
    assert init_cache(run.config.model, 2, 9).h_NBD.shape == (2, 2, 16)
    with pytest.raises(UserError, match=r"model\.architecture: is lstm"):
        write_report(run, tmp_path / "out", (), 4)
    assert not (tmp_path / "out").exists()
