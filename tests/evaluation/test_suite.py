"""Suite files and their typed form."""

import dataclasses

import pytest

from configs import base
from jaxformer.config import DataConfig
from jaxformer.errors import UserError
from jaxformer.evaluation.suite import SUITES, SuiteConfig, load_suite

AGREEMENT = DataConfig.from_config_dict(base.data())
TEXT = dataclasses.replace(AGREEMENT, source="text", path="x")


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.py")), ids=lambda path: path.stem)
def test_every_suite_in_the_repository_is_valid(path):
    assert load_suite(path.stem, AGREEMENT) == load_suite(str(path), AGREEMENT)


def test_the_default_follows_the_data():
    assert load_suite("", AGREEMENT) == load_suite("agreement", TEXT)
    assert load_suite("", TEXT) == load_suite("text", AGREEMENT)
    assert load_suite("", AGREEMENT) != load_suite("", TEXT)


def test_json_round_trip():
    suite = load_suite("agreement", AGREEMENT)
    values = suite.to_dict()
    values["evaluators"] = list(values["evaluators"])
    assert SuiteConfig.from_config_dict(values) == suite


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluators": ("perplexty",)}, r"suite\.evaluators: has 'perplexty'"),
        ({"evaluators": "perplexity"}, r"suite\.evaluators: is 'perplexity'"),
        ({"evaluators": (1,)}, r"suite\.evaluators\[0\]: is 1"),
        ({"lengths": "1:b"}, "lengths: has 'b'"),
        ({"num_examples": -1}, r"suite\.num_examples: is -1"),
        ({"sample": 3}, r"suite\.sample: is not a field, did you mean suite\.samples"),
        ({"samples": {"count": -1}}, r"suite\.samples\.count: is -1"),
        ({"samples": {"max_new_tokens": 0}}, r"suite\.samples\.max_new_tokens: is 0"),
        ({"samples": {"sampler": "top_p:2"}}, r"sampler\.p: is 2"),
    ],
)
def test_bad_fields_are_refused(changes, message):
    values = load_suite("agreement", AGREEMENT).to_dict()
    samples = values["samples"] | changes.get("samples", {})
    with pytest.raises(UserError, match=message):
        SuiteConfig.from_config_dict(values | changes | {"samples": samples})


def test_files_that_are_no_suite_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"choose from agreement, .*text"):
        load_suite("agreemnt", AGREEMENT)
    path = tmp_path / "broken.py"
    path.write_text("def get_config(:\n")
    with pytest.raises(UserError, match=r"broken\.py: cannot be read: SyntaxError"):
        load_suite(str(path), AGREEMENT)
