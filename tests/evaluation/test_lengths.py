"""The syntax of --lengths."""

import pytest

from jaxformer.errors import UserError
from jaxformer.evaluation.lengths import parse_lengths


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
