"""What a row of tokens is trained to predict, told by position and segment, never by token id."""

import numpy as np


def causal_lm(tokens: np.ndarray, segment_ids: np.ndarray) -> dict[str, np.ndarray]:
    """Makes rows of length L that predict each next token; any leading axes.

    tokens, segment_ids: int[…, L + 1], segment 0 is padding, 1, 2, … are documents. An input needs
    a next token, so a last token before padding is no input; the last token of a document before
    another document stays as an input of weight 0. The end of a document is a target like any
    other, also where its token is the padding token. Positions restart at each segment.
    """
    here, after = segment_ids[..., :-1], segment_ids[..., 1:]
    is_input = (here > 0) & (after > 0)
    is_supervised = is_input & (here == after)
    index = np.arange(here.shape[-1])
    starts = np.diff(here, axis=-1, prepend=-1) != 0
    positions = index - np.maximum.accumulate(np.where(starts, index, 0), axis=-1)
    return {
        "tokens": (tokens[..., :-1] * is_input).astype(np.int32),
        "targets": (tokens[..., 1:] * is_supervised).astype(np.int32),
        "segment_ids": (here * is_input).astype(np.int32),
        "positions": (positions * is_input).astype(np.int32),
        "weights": is_supervised.astype(np.float32),
    }
