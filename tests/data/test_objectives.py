import numpy as np

from jaxformer.data.objectives import causal_lm

A, B, C, EOS = 5, 6, 7, 2


def test_two_documents_and_padding():
    row = causal_lm(np.array([1, A, EOS, 1, B, EOS, 0, 0]), np.array([1, 1, 1, 2, 2, 2, 0, 0]))
    assert row["tokens"].tolist() == [1, A, EOS, 1, B, 0, 0]
    assert row["targets"].tolist() == [A, EOS, 0, B, EOS, 0, 0]
    assert row["weights"].tolist() == [1, 1, 0, 1, 1, 0, 0]  # EOS of A does not predict <s> of B
    assert row["segment_ids"].tolist() == [1, 1, 1, 2, 2, 0, 0]
    assert row["positions"].tolist() == [0, 1, 2, 0, 1, 0, 0]


def test_end_is_supervised_where_it_is_the_padding_token():
    row = causal_lm(np.array([A, 0, 0, 0]), np.array([1, 1, 0, 0]))
    assert row["targets"].tolist() == [0, 0, 0]
    assert row["weights"].tolist() == [1, 0, 0]


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
