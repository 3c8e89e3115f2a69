"""Translation suites on an untrained model."""

import dataclasses
import gzip
import subprocess
import sys
import types

import numpy as np
import pytest

from configs import base
from configs.eval import translation as suite_file
from jaxformer.config import RunConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.run import evaluate
from jaxformer.evaluation.suite import SuiteConfig, load_suite
from jaxformer.evaluation.translation import find_pairs, text_metrics
from tests import builders

SOURCES = ["a dog runs", "two dogs", "a man sees a dog", "a man", "dogs"]
TARGETS = ["ein hund rennt", "zwei hunde", "ein mann sieht einen hund", "ein mann", "hunde"]
LENGTH = 12


def make_words(cfg) -> Tokenizer:
    return make_tokenizer(cfg.data.tokenizer, *[lambda: iter(SOURCES + TARGETS)] * 2)


class Rows:
    """Rows as a sequence-to-sequence objective makes them, several pairs a row where packed."""

    num_tokens, num_bytes, fingerprint = 20, 0, "pairs"

    def __init__(self, tokenizer: Tokenizer, groups: list[list[int]]):
        self.tokenizer, self.groups = tokenizer, groups

    def __len__(self) -> int:
        return len(self.groups)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        del epoch
        names = ("source", "tokens", "targets")
        found: dict[str, list[int]] = {name: [] for name in names}
        segments: dict[str, list[int]] = {name: [] for name in names}
        for segment, pair in enumerate(self.groups[index], 1):
            source = self.tokenizer.encode(SOURCES[pair]).tolist()
            target = self.tokenizer.encode(TARGETS[pair]).tolist()
            parts = ([*source, 2], [1, *target], [*target, 2])
            for name, part in zip(names, parts, strict=True):
                found[name] += part
                segments[name] += [segment] * len(part)
        pad = lambda values: np.array(values + [0] * (2 * LENGTH - len(values)), np.int32)  # noqa: E731
        row = {name: pad(values) for name, values in found.items()}
        row["segment_ids"] = pad(segments["tokens"])
        row["source_segment_ids"] = pad(segments["source"])
        row["weights"] = (row["segment_ids"] > 0).astype(np.float32)
        row["positions"] = row["source_positions"] = np.arange(2 * LENGTH, dtype=np.int32)
        return row


def make_run(architecture="encoder_decoder"):
    config = base.get_config()
    config.model.update(architecture=architecture, num_layers=1, d_model=16, max_length=2 * LENGTH)
    config.model.position.kind = "none"
    config.data.update(source="text", path="x", length=LENGTH, add_bos=False)
    if architecture == "encoder_decoder":
        config.objective.kind = "seq2seq"
        config.data.target_path = "y"
    config.eval.update(batch_size=2)
    cfg = RunConfig.from_config_dict(config)
    words = make_words(cfg)
    cfg = cfg.resolve(vocab_size=words.vocab_size, steps_per_epoch=1000)
    rows = Rows(words, [[0, 1], [2], [3, 4]])
    data = types.SimpleNamespace(tokenizer=words, train=rows, validation=rows, task=None)
    model = builders.make_model(cfg.model)
    run = types.SimpleNamespace(model=model, tokenizer=words, config=cfg, step=7, weights="raw")
    return run, data


def small_suite(**changes):
    values = suite_file.get_config()
    values.translation.update(beam_size=2, extra_tokens=1, **changes)
    return SuiteConfig.from_config_dict(values)


def test_a_suite_translates_greedily_and_by_beam_search(tmp_path):
    run, data = make_run()
    found = evaluate(run, data, small_suite(), tmp_path)
    values = {row["metric"]: row for row in found.results}
    assert values["loss"]["weight"] == 18
    assert values["bleu greedy"]["weight"] == values["bleu beam 2"]["weight"] == 5
    assert 0 <= values["bleu beam 2"]["value"] <= 100
    assert {name for name in values if "chrf" in name} == {"chrf greedy", "chrf beam 2"}
    table = found.tables["Translation, step 7"]
    assert "| greedy " in table
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in table
    assert table in (tmp_path / "table.md").read_text()
    blocks = (tmp_path / "translations.txt").read_text().split("\n\n")
    assert len(blocks) == 5
    for block, source, target in zip(blocks, SOURCES, TARGETS, strict=True):
        lines = [line.split(maxsplit=1) for line in block.splitlines()]
        assert lines[0] == ["source", source]
        assert lines[1] == ["reference", target]
        assert [line.split("  ")[0] for line in block.splitlines()[2:]] == ["greedy", "beam 2"]


def test_pairs_come_from_files_or_rows(tmp_path):
    run, data = make_run()
    assert find_pairs(small_suite().translation, run.tokenizer, data.validation, 0) == (
        SOURCES,
        TARGETS,
    )
    some = find_pairs(small_suite().translation, run.tokenizer, data.validation, 1)
    assert some.sources == SOURCES[:2]
    paths = {"source_path": str(tmp_path / "s.gz"), "target_path": str(tmp_path / "t")}
    with gzip.open(paths["source_path"], "wt") as file:
        file.write("a man\ndogs\n")
    (tmp_path / "t").write_text("ein mann\nhunde\n")
    suite = small_suite(**paths)
    pairs = find_pairs(suite.translation, run.tokenizer, data.validation, 1)
    assert pairs == (["a man", "dogs"], ["ein mann", "hunde"])
    (tmp_path / "t").write_text("ein mann\n")
    with pytest.raises(UserError, match="has 1 lines"):
        find_pairs(suite.translation, run.tokenizer, data.validation, 0)


def test_bleu_and_chrf_are_sacrebleus():
    reference = "The quick brown fox jumps over the lazy dog ."
    found = text_metrics([reference], [reference])
    assert [score for score, _ in found.values()] == pytest.approx([100, 100])
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2."
    assert found["bleu"][1].startswith(signature)
    assert found["chrf"][1].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.")
    # Precisions 9/9, 8/8, 7/7, 6/6; the brevity penalty is exp(1 - 10/9).
    short, _ = text_metrics([reference[:-2]], [reference])["bleu"]
    assert short == pytest.approx(100 * np.exp(1 - 10 / 9), abs=0.01)
    # chrF of "abc" for "abcd": orders 1, 2, 3 of both; precision 1, recalls 3/4, 2/3, 1/2.
    precision, recall = 1, np.mean([3 / 4, 2 / 3, 1 / 2])
    wanted = 100 * 5 * precision * recall / (4 * precision + recall)
    assert text_metrics(["abc"], ["abcd"])["chrf"][0] == pytest.approx(wanted, abs=0.01)


def test_sacrebleu_is_imported_where_it_is_used_only():
    code = "import sys, jaxformer.evaluation.run; print('sacrebleu' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_an_encoder_decoder_translates(tmp_path):
    run, data = make_run("decoder")
    with pytest.raises(UserError, match=r"suite\.evaluators: has bleu, but .* = decoder"):
        evaluate(run, data, small_suite(), tmp_path / "eval")
    run, data = make_run()
    suite = small_suite()
    samples = dataclasses.replace(suite.samples, count=1, max_new_tokens=3)
    with pytest.raises(UserError, match=r"suite\.samples\.count: is 1 while .*encoder_decoder"):
        evaluate(run, data, dataclasses.replace(suite, samples=samples), tmp_path / "eval")
    assert not (tmp_path / "eval").exists()


def test_the_default_suite_follows_the_objective():
    run, _ = make_run()
    data = run.config.data
    assert load_suite("", data, "seq2seq") == load_suite("translation", data)
    assert load_suite("", data, "causal_lm") == load_suite("text", data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, r"suite\.translation\.beam_size: is 0"),
        ({"extra_tokens": -1}, r"suite\.translation\.extra_tokens: is -1"),
        ({"length_penalty": "gmnt"}, r"suite\.translation\.length_penalty: is 'gmnt'"),
        ({"alpha": -0.5}, r"suite\.translation\.alpha: is -0\.5"),
        ({"source_path": "x"}, r"suite\.translation\.target_path: or source_path is empty"),
    ],
)
def test_bad_fields_are_refused(changes, message):
    values = suite_file.get_config()
    values.translation.update(changes)
    with pytest.raises(UserError, match=message):
        SuiteConfig.from_config_dict(values)
