"""The syntax of --lengths, and test examples of one length."""

import numpy as np
import pytest

from configs import base
from jaxformer.config import RunConfig
from jaxformer.data.tasks.agreement import Agreement
from jaxformer.errors import UserError
from jaxformer.evaluation.lengths import LengthExamples, parse_lengths, trained_up_to


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("7", (7,)),
        ("0:3", (0, 1, 2, 3)),
        ("0:10:5", (0, 5, 10)),
        ("1:10:5", (1, 6)),
        ("4:4", (4,)),
        ("1:200:10,256", (*range(1, 201, 10), 256)),
        ("9, 1:3, 2", (1, 2, 3, 9)),
    ],
)
def test_lists_and_ranges(text, lengths):
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text", ["", "a", "1:", ":3", "1:2:3:4", "3:1", "1:5:0", "-1", "1.5", "1,,2", "1:5:-1", "²"]
)
def test_everything_else_is_refused(text):
    with pytest.raises(UserError, match=r"^lengths: "):
        parse_lengths(text)


def agreement_config() -> RunConfig:
    config = base.get_config()
    config.data.agreement.num_examples = 50
    return RunConfig.from_config_dict(config)


@pytest.mark.parametrize(("bound", "width"), [(0, 16), (64, 16), (15, 15)])
def test_examples_of_a_length_ask_for_the_verb_of_each_sentence(bound, width):
    examples = LengthExamples(Agreement(agreement_config()), 2, num_examples=10, seed=0)
    assert 8 < examples.longest <= 15
    longest = 0
    batches = list(examples.batches(4, bound))
    for batch in batches:
        rows = np.arange(4)
        np.testing.assert_array_equal(
            batch["targets"][rows, batch["verb_index"]][batch["counted"]],
            batch["correct"][batch["counted"]],
        )
        assert (batch["weights"][rows, batch["verb_index"]] == 1)[batch["counted"]].all()
        assert (batch["correct"] != batch["wrong"]).all()
        assert batch["tokens"].shape == (4, width)
        longest = max(longest, int((batch["segment_ids"] != 0).sum(1).max()))
    assert [batch["counted"].sum() for batch in batches] == [4, 4, 2]
    assert longest == examples.longest


def test_lengths_seen_in_training():
    assert trained_up_to(agreement_config()) == 3
