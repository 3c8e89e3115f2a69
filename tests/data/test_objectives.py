"""A literal row of each objective: inputs, targets, weights, segments, positions."""

import numpy as np
import pytest

from jaxformer.data.objectives import (
    Masking,
    causal_lm,
    classification,
    masked_lm,
    num_masked,
    prefix_lm,
    seq2seq,
    tagging,
)

BOS, EOS, MASK, A, B, C, D, E, F, G = 1, 2, 3, 5, 6, 7, 8, 9, 10, 11
# Two documents and padding, twelve tokens: <s> A B C </s>, <s> D E F </s>.
TOKENS = np.array([BOS, A, B, C, EOS, BOS, D, E, F, EOS, 0, 0])
SEGMENTS = np.array([1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0])


def lists(row):
    return {name: array.tolist() for name, array in row.items()}


def test_causal_lm():
    assert lists(causal_lm(TOKENS, SEGMENTS)) == {
        "tokens": [BOS, A, B, C, EOS, BOS, D, E, F, 0, 0],
        "targets": [A, B, C, EOS, 0, D, E, F, EOS, 0, 0],
        "weights": [1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0],  # </s> does not predict the next <s>
        "segment_ids": [1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0],
        "positions": [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0],
    }


def test_prefix_lm():
    """Prefixes of 3 of 4 inputs (word 6) and of 1 of 4 (word 8): the latter is a causal model."""
    row = prefix_lm(causal_lm(TOKENS, SEGMENTS), np.array([6, 8], np.uint64))
    assert lists(row) == {
        "tokens": [BOS, A, B, C, EOS, BOS, D, E, F, 0, 0],
        "prefix": [True, True, True, False, False, True, *[False] * 5],
        "targets": [0, 0, C, EOS, 0, D, E, F, EOS, 0, 0],
        "weights": [0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0],
        "segment_ids": [1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0],
        "positions": [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0],
    }


def test_no_target_is_visible_in_a_prefix():
    rng = np.random.default_rng(0)
    row = causal_lm(TOKENS, SEGMENTS)
    seen = set()
    for _ in range(100):
        drawn = prefix_lm(row, rng.integers(0, 2**63, 2).astype(np.uint64))
        seen.add(tuple(drawn["prefix"][:4]))
        for i in np.flatnonzero(drawn["weights"]):
            assert not drawn["prefix"][i + 1]  # the token that i predicts
        for document in (1, 2):
            own = drawn["segment_ids"] == document
            supervised = int(drawn["weights"][own].sum())
            assert supervised + int(drawn["prefix"][own].sum()) == 5
    assert len(seen) == 4


def masking(rate=0.5, mask=0.8, random=0.1):
    is_ordinary = np.arange(12) >= 4
    return Masking(rate, mask, random, MASK, is_ordinary, np.flatnonzero(is_ordinary))


def test_masked_lm():
    """Three of six ordinary tokens: B hidden (fate .5), D drawn (.85, the fourth: 7), F kept."""
    order, fate, drawn = np.full((3, 12), 2**63, np.uint64)
    order[[2, 6, 8]] = 3, 2, 1
    fate[[2, 6, 8]] = np.array([0.5, 0.85, 0.95]) * 2.0**64
    drawn[6] = 8 * 100 + 3
    row = masked_lm(TOKENS, SEGMENTS, np.stack([order, fate, drawn]), masking())
    assert lists(row) == {
        "tokens": [BOS, A, MASK, C, EOS, BOS, C, E, F, EOS, 0, 0],
        "targets": [0, 0, B, 0, 0, 0, D, 0, F, 0, 0, 0],
        "weights": [0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0],
        "segment_ids": [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0],
        "positions": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0],
    }


@pytest.mark.parametrize(
    ("count", "rate", "expected"), [(0, 0.15, 0), (1, 0.15, 1), (10, 0.15, 2), (3, 0.99, 3)]
)
def test_some_token_is_hidden_where_there_is_one(count, rate, expected):
    assert num_masked(count, rate) == expected


def test_a_row_without_ordinary_tokens_hides_nothing():
    tokens, segments = np.array([BOS, EOS, 0]), np.array([1, 1, 0])
    row = masked_lm(tokens, segments, np.zeros((3, 3), np.uint64), masking())
    assert row["tokens"].tolist() == [BOS, EOS, 0]
    assert not row["weights"].any()


def test_seq2seq():
    """Two pairs in a row, A B C -> D E and F -> G: the decoder reads targets shifted right."""
    sources = [np.array([A, B, C, EOS]), np.array([F, EOS])]
    targets = [np.array([BOS, D, E, EOS]), np.array([BOS, G, EOS])]
    assert lists(seq2seq(sources, targets, 8, 12)) == {
        "source": [A, B, C, EOS, F, EOS, 0, 0],
        "source_segment_ids": [1, 1, 1, 1, 2, 2, 0, 0],
        "source_positions": [0, 1, 2, 3, 0, 1, 0, 0],
        "tokens": [BOS, D, E, BOS, G, *[0] * 7],
        "targets": [D, E, EOS, G, EOS, *[0] * 7],
        "weights": [1, 1, 1, 1, 1, *[0] * 7],
        "segment_ids": [1, 1, 1, 2, 2, *[0] * 7],
        "positions": [0, 1, 2, 0, 1, *[0] * 7],
    }


def test_sequence_classification():
    row = classification(np.array([BOS, A, B, C, EOS]), np.array([4]), 12)
    assert lists(row) == {
        "tokens": [BOS, A, B, C, EOS, *[0] * 7],
        "segment_ids": [1] * 5 + [0] * 7,
        "positions": [0, 1, 2, 3, 4, *[0] * 7],
        "targets": 4,
        "weights": 1.0,
    }


def test_token_classification():
    """Words A, B C and D of classes 0, 2 and 1; the label of a word is on its last token."""
    row = tagging(np.array([BOS, A, B, C, D, EOS]), np.array([0, 1, 0, 3, 2, 0]), 12)
    assert lists(row) == {
        "tokens": [BOS, A, B, C, D, EOS, *[0] * 6],
        "segment_ids": [1] * 6 + [0] * 6,
        "positions": [0, 1, 2, 3, 4, 5, *[0] * 6],
        "targets": [0, 0, 0, 2, 1, 0, *[0] * 6],
        "weights": [0, 1, 0, 1, 1, 0, *[0] * 6],
    }


def test_end_is_supervised_where_it_is_the_padding_token():
    row = causal_lm(np.array([A, 0, 0, 0]), np.array([1, 1, 0, 0]))
    assert row["targets"].tolist() == [0, 0, 0]
    assert row["weights"].tolist() == [1, 0, 0]
    pair = seq2seq([np.array([A, 0])], [np.array([0, B, 0])], 4, 4)  # <s>, </s> and <pad> are 0
    assert pair["weights"].tolist() == [1, 1, 0, 0]
    assert pair["source_segment_ids"].tolist() == [1, 1, 0, 0]


def test_padding_token_inside_a_document_is_a_token():
    row = causal_lm(np.array([A, 0, B]), np.array([1, 1, 1]))
    assert row["weights"].tolist() == [1, 1]
    assert row["positions"].tolist() == [0, 1]


def test_full_row_reads_one_more_token():
    row = causal_lm(np.array([A, B, C]), np.array([4, 4, 4]))
    assert (row["tokens"].tolist(), row["targets"].tolist()) == ([A, B], [B, C])
    assert row["weights"].tolist() == [1, 1]


def test_left_padding_and_blank():
    row = causal_lm(np.array([0, 0, A, B]), np.array([0, 0, 1, 1]))
    assert row["weights"].tolist() == [0, 0, 1]
    assert row["positions"].tolist() == [0, 0, 0]
    blank = causal_lm(np.zeros(4, int), np.zeros(4, int))
    assert not any(array.any() for array in blank.values())


def test_types_and_leading_axes():
    tokens, segments = np.array([[1, A, 2], [1, 2, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    rows = causal_lm(tokens, segments)
    for i in range(2):
        for name, array in causal_lm(tokens[i], segments[i]).items():
            assert rows[name].dtype == (np.float32 if name == "weights" else np.int32)
            np.testing.assert_array_equal(rows[name][i], array)


@pytest.mark.parametrize(
    "row",
    [
        prefix_lm(causal_lm(TOKENS, SEGMENTS), np.zeros(2, np.uint64)),
        masked_lm(TOKENS, SEGMENTS, np.zeros((3, 12), np.uint64), masking()),
        seq2seq([TOKENS[:5]], [TOKENS[:5]], 8, 8),
        classification(TOKENS[:5], np.array([1], np.uint8), 8),
        tagging(TOKENS[:5], np.array([0, 1, 1, 1, 0], np.uint8), 8),
    ],
    ids=["prefix", "masked", "seq2seq", "classes", "tags"],
)
def test_types(row):
    for name, array in row.items():
        expected = {"weights": np.float32, "prefix": bool}.get(name, np.int32)
        assert array.dtype == expected, name
