"""Rows without data: what a batch looks like is known from the config alone."""

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.objectives import (
    Row,
    causal_lm,
    classification,
    image_row,
    prefix_lm,
    seq2seq,
    tagging,
)


def blank_row(cfg: RunConfig) -> Row:
    """A row of padding with the arrays, shapes and types that the run's rows have."""
    length, kind = cfg.data.length, cfg.objective.kind
    nothing = np.zeros(0, np.int64)
    if kind == "seq2seq":
        return seq2seq([nothing], [nothing], length, cfg.data.target_length or length)
    if kind == "span_corruption":
        target_length = cfg.objective.span_corruption.target_length(length)
        return seq2seq([nothing], [nothing], length, target_length)
    if cfg.data.source == "images":
        patches = cfg.model.patches
        row = image_row(np.zeros(patches.shape, np.float32), 0, patches.length)
        return {name: np.zeros_like(x) for name, x in row.items()}
    if kind == "sequence_classification":
        return classification(nothing, np.zeros(1, np.int64), length)
    if kind == "token_classification":
        return tagging(nothing, nothing, length)
    row = causal_lm(*np.zeros((2, length + 1), np.int64))
    return prefix_lm(row, np.zeros(0, np.uint64)) if kind == "prefix_lm" else row


def blank_batch(cfg: RunConfig) -> Row:
    """The shapes and types of a global batch, as arrays that take no memory."""
    rows, row = cfg.train.batch_size, {**blank_row(cfg), "rows": np.int32(0)}
    return {name: np.broadcast_to(np.asarray(x), (rows, *np.shape(x))) for name, x in row.items()}
