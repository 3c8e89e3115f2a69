"""What a row of tokens is trained to predict, told by position and segment, never by token id."""

import numpy as np


def causal_lm(tokens: np.ndarray, segment_ids: np.ndarray) -> dict[str, np.ndarray]:
    """Makes the row of length L that predicts each next token.

    tokens, segment_ids: int[L + 1], segment 0 is padding, 1, 2, … are documents. An input needs a
    next token, so a last token before padding is no input; the last token of a document before
    another document stays as an input of weight 0. The end of a document is a target like any
    other, also where its token is the padding token. Positions restart at each segment.
    """
    here, after = segment_ids[:-1], segment_ids[1:]
    is_input = (here > 0) & (after > 0)
    is_supervised = is_input & (here == after)
    index = np.arange(len(here))
    starts = np.concatenate([[True], here[1:] != here[:-1]])
    positions = index - np.maximum.accumulate(np.where(starts, index, 0))
    return {
        "tokens": np.where(is_input, tokens[:-1], 0).astype(np.int32),
        "targets": np.where(is_supervised, tokens[1:], 0).astype(np.int32),
        "segment_ids": np.where(is_input, here, 0).astype(np.int32),
        "positions": np.where(is_input, positions, 0).astype(np.int32),
        "weights": is_supervised.astype(np.float32),
    }
