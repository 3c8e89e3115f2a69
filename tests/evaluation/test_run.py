"""A suite from end to end on an untrained model."""

import csv
import dataclasses
import json
import types

import pytest

from configs import base
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.errors import UserError
from jaxformer.evaluation.run import evaluate
from jaxformer.evaluation.schemes import parse_schemes
from jaxformer.evaluation.suite import load_suite
from tests import builders


def make_run(position="learned", max_length=24, **changes):
    """An untrained run and its data; `changes` to the config of the data."""
    config = base.get_config()
    config.data.agreement.num_examples = 50
    config.model.update(num_layers=1, d_model=16, max_length=max_length)
    config.model.position.kind = position
    config.eval.update(batch_size=32, max_rows=40)
    config.data.update(changes)
    cfg = RunConfig.from_config_dict(config)
    data = open_data(cfg, None)
    cfg = cfg.resolve(vocab_size=data.tokenizer.vocab_size, steps_per_epoch=1000)
    model = builders.make_model(cfg.model)
    how = {"model": model, "tokenizer": data.tokenizer, "config": cfg}
    return types.SimpleNamespace(**how, step=7, weights="raw"), data


def small_suite(run, **changes):
    suite = load_suite("", run.config.data)
    samples = dataclasses.replace(suite.samples, count=2, max_new_tokens=40, sampler="greedy")
    return dataclasses.replace(suite, num_examples=20, samples=samples, **changes)


def test_agreement_suite_writes_tables_plots_and_samples(tmp_path):
    run, data = make_run()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "split": "train", "loss": 2.0}\n')
    found = evaluate(
        run, data, small_suite(run, lengths="3,4,8"), tmp_path / "eval", metrics_path=metrics
    )
    names = {path.name for path in found.paths}
    assert names == {
        "results.csv",
        "results.json",
        "table.md",
        "samples.txt",
        "agreement_by_length.png",
        "curves.png",
    }
    assert {path.name for path in (tmp_path / "eval").iterdir()} == names
    with (tmp_path / "eval" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    read = json.loads((tmp_path / "eval" / "results.json").read_text())
    assert read["step"] == 7
    assert [row["metric"] for row in rows] == [row["metric"] for row in read["results"]]
    validation = {row["metric"]: row for row in rows if row["split"] == "validation"}
    assert validation.keys() == {"loss", "perplexity", "accuracy"}
    # k = 8 needs more positions than the table has: left out of the suite's own list.
    by_length = [row for row in rows if row["metric"] == "agreement"]
    assert [row["length"] for row in by_length] == ["3", "4"]
    for row in by_length:
        assert float(row["weight"]) == 20
        assert 0 <= float(row["low"]) <= float(row["value"]) <= float(row["high"]) <= 1
    table = found.tables["By number of modifiers"].splitlines()
    assert "Left out, longer than model.max_length = 24: [8]" in table
    # Training sentences have up to 19 inputs, those of 4 modifiers at least 21.
    new = {row["length"]: row for row in rows if row["metric"] == "untrained_ids"}
    assert float(new["3"]["value"]) == 0
    share = float(new["4"]["value"])
    assert 2 / 21 <= share <= 4 / 23
    assert table[-1] == f"Tokens with ids that training never had: {100 * share:.1f} % at 4"
    assert table[0].split("|")[-2].strip() == "untrained ids %"
    assert table[3].split("|")[-2].strip() == f"{100 * share:.1f}"
    table = [line for line in table if line.startswith("|")]
    assert [line.split("|")[2].strip() for line in table] == ["trained", "-" * 6 + ":", "yes", "no"]
    assert len(found.samples) == 2
    assert (tmp_path / "eval" / "samples.txt").read_text().splitlines() == found.samples
    assert all(len(text.split()) <= 23 for text in found.samples)


def test_lengths_asked_for_must_fit_a_learned_table(tmp_path):
    run, data = make_run()
    with pytest.raises(UserError, match=r"model\.max_length: is 24, but length 8 needs"):
        evaluate(run, data, small_suite(run), tmp_path / "eval", lengths=(0, 8))
    assert not (tmp_path / "eval").exists()
    run, data = make_run("rope")
    suite = small_suite(run, evaluators=("agreement",))
    suite = dataclasses.replace(suite, samples=dataclasses.replace(suite.samples, count=0))
    found = evaluate(run, data, suite, tmp_path / "eval", lengths=(8, 7))
    shares = [row["length"] for row in found.results if row["metric"] == "agreement"]
    assert shares == [7, 8]
    assert not found.samples


def test_text_suite_continues_the_data_and_counts_bits_per_byte(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Être, ou ne pas être : là est la question\n" * 40, encoding="utf-8")
    run, data = make_run(
        source="text",
        path=str(path),
        tokenizer={"kind": "char", "path": "", "vocab_size": 0},
    )
    found = evaluate(run, data, small_suite(run), tmp_path / "eval")
    values = {row["metric"]: row["value"] for row in found.results}
    # Four lines of 42 characters and </s>, which is no byte; 3 of each line's characters have two.
    bits, tokens, size = values["loss"] / 0.693147, 4 * 42 + 1, 4 * 45
    assert values["bits_per_byte"] == pytest.approx(bits * tokens / size, rel=1e-5)
    few = dataclasses.replace(run.config.eval, max_rows=2)
    run.config = dataclasses.replace(run.config, eval=few)
    part = evaluate(run, data, small_suite(run), tmp_path / "eval")
    assert "bits_per_byte" not in {row["metric"] for row in part.results}
    first = data.tokenizer.decode(data.validation.row(0, 0)["tokens"][:8])
    assert len(found.samples) == 2
    assert all(text.startswith(first) and 8 <= len(text) <= 24 for text in found.samples)


def char_run(path, **changes):
    """A run on a text of characters, contexts of 20, and a suite without samples."""
    path.write_text("To be, or not to be, that is the question:\n" * 60)
    char = {"kind": "char", "path": "", "vocab_size": 0}
    run, data = make_run(source="text", path=str(path), tokenizer=char, **changes)
    suite = small_suite(run)
    return (
        run,
        data,
        dataclasses.replace(suite, samples=dataclasses.replace(suite.samples, count=0)),
    )


def test_a_text_by_context_length(tmp_path):
    run, data, suite = char_run(tmp_path / "text.txt", position="rope")
    found = evaluate(run, data, suite, tmp_path / "eval", lengths=(40, 20))
    names = {path.name for path in found.paths}
    tables = {"results.csv", "results.json", "table.md"}
    assert names == tables | {"loss_by_length.png", "loss_last_by_length.png"}
    assert {row["positions"] for row in found.results} == {"trained"}
    rows = {(row["length"], row["metric"]): row for row in found.results if row["length"]}
    tokens = data.validation.num_tokens
    assert {rows[length, "loss"]["weight"] for length in (20, 40)} == {tokens}
    assert (20, "loss_beyond") not in rows
    # The last 16 of each window of 40; of a window of two trained lengths half is beyond.
    assert {rows[length, "loss_last"]["weight"] for length in (20, 40)} == {tokens // 40 * 16}
    assert rows[40, "loss_beyond"]["weight"] == pytest.approx(tokens / 2, abs=20)
    # At the trained length this is the evaluation of the validation rows.
    whole = {row["metric"]: row["value"] for row in found.results if row["split"] == "validation"}
    assert rows[20, "loss"]["value"] == pytest.approx(whole["loss"], rel=1e-6)
    table = found.tables["By number of tokens of context"].splitlines()
    assert [line.split("|")[2].strip() for line in table[2:4]] == ["yes", "no"]
    # In packed lines of 44 tokens nearly half of a window of 40 is farther than 19 from its start.
    share = rows[40, "untrained_distances"]["value"]
    assert 0.3 < share < 0.5
    assert table[-1].endswith(f"distances that training never had: {100 * share:.1f} % at 40")


def test_several_schemes_stand_side_by_side(tmp_path):
    run, data, suite = char_run(tmp_path / "text.txt", position="rope")
    suite = dataclasses.replace(suite, samples=dataclasses.replace(suite.samples, count=1))
    schemes = parse_schemes("window:5,trained,none")
    found = evaluate(run, data, suite, tmp_path / "eval", lengths=(20, 40), schemes=schemes)
    with (tmp_path / "eval" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = {
        (row["positions"], row["length"]): float(row["value"])
        for row in rows
        if row["metric"] == "loss"
    }
    names = ["window:5", "trained", "none"]
    assert list(losses) == [(name, length) for name in names for length in ("", "20", "40")]
    for length in ("", "20", "40"):
        assert len({losses[name, length] for name in names}) == 3
    shown = found.tables["By number of tokens of context: loss"].splitlines()
    assert [cell.strip() for cell in shown[0].split("|")[3:6]] == names
    assert [cell.strip() for cell in shown[3].split("|")[1:6]] == [
        "40",
        "no",
        *(f"{losses[name, '40']:.4f}" for name in names),
    ]
    assert "By number of tokens of context: loss of the same last tokens" in found.tables
    overall = found.tables["Validation, step 7"].splitlines()
    assert [cell.strip() for cell in overall[0].split("|")[1:-1]] == [
        "metric",
        *names,
        "unit",
        "of",
    ]
    # Samples are of the first scheme.
    alone = evaluate(run, data, suite, tmp_path / "alone", schemes=parse_schemes("window:5"))
    assert found.samples == alone.samples
    assert list(alone.tables) == ["Validation, step 7, positions window:5"]


def test_schemes_of_a_task_share_its_examples(tmp_path):
    run, data = make_run("rope")
    suite = dataclasses.replace(small_suite(run), evaluators=("agreement",))
    schemes = parse_schemes("trained,yarn:1")
    found = evaluate(run, data, suite, tmp_path / "eval", lengths=(1, 6), schemes=schemes)
    shares = {(r["positions"], r["length"]): r["value"] for r in found.results}
    assert [shares["trained", n] for n in (1, 6)] == [shares["yarn:1", n] for n in (1, 6)]
    shown = ["agreement %", "untrained distances %"]
    assert list(found.tables) == [f"By number of modifiers: {title}" for title in shown]
    assert (tmp_path / "eval" / "agreement_by_length.png").exists()


def test_a_scheme_that_contradicts_the_model_stops_all(tmp_path):
    run, data = make_run()
    schemes = parse_schemes("trained,pi:2")
    with pytest.raises(UserError, match=r"positions: has 'pi:2', but .* are learned"):
        evaluate(run, data, small_suite(run), tmp_path / "eval", schemes=schemes)
    assert not (tmp_path / "eval").exists()


def test_first_tokens_leave_room_in_a_full_learned_table(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be, that is the question:\n" * 40)
    char = {"kind": "char", "path": "", "vocab_size": 0}
    run, data = make_run(source="text", path=str(path), length=6, max_length=6, tokenizer=char)
    found = evaluate(run, data, small_suite(run), tmp_path / "eval")
    assert len(found.samples) == 2


def test_what_the_data_does_not_have_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc " * 100)
    run, data = make_run(
        source="text", path=str(path), tokenizer={"kind": "char", "path": "", "vocab_size": 0}
    )
    suite = small_suite(run)
    with pytest.raises(UserError, match=r"lengths: have 500, but the validation data fill"):
        evaluate(run, data, suite, tmp_path / "eval", lengths=(3, 500))
    agreement = dataclasses.replace(suite, evaluators=("agreement",))
    with pytest.raises(UserError, match=r"suite\.evaluators: has agreement"):
        evaluate(run, data, agreement, tmp_path / "eval")
    for prompt, message in (("xyz", "characters"), ("abc " * 6, "leaves no room")):
        samples = dataclasses.replace(suite.samples, prompts=(prompt,))
        with pytest.raises(UserError, match=message):
            evaluate(run, data, dataclasses.replace(suite, samples=samples), tmp_path / "eval")
    assert not (tmp_path / "eval").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    run, data = make_run()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="give another --out"):
        evaluate(run, data, small_suite(run), tmp_path / "file" / "eval")
