"""What the heads of a causal model look at, and how alike its hidden states are, in numbers.

All take attention weights [N, B, H, L, S] of one forward pass (S = L, rows sum to 1 or, with a
sink, less) and bool[B, L], true where a token is no padding; rows are padded on the right. Each
gives float64[N, H]: a mean over the queries that count, rows of the batch and places alike.
"""

from collections.abc import Callable

import numpy as np

Scores = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def entropy(weights_NBHLS: np.ndarray, tokens_BL: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """Nats of a query's weights: 0 on one token, ln n on n tokens evenly."""
    positive = np.where(weights_NBHLS > 0, weights_NBHLS, 1.0)
    return _mean(-(weights_NBHLS * np.log(positive)).sum(-1), real_BL)


def sink(weights_NBHLS: np.ndarray, tokens_BL: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """Weight on the first token, of all queries after it (Xiao et al. 2024)."""
    return _mean(weights_NBHLS[..., 0], real_BL & (np.arange(real_BL.shape[1]) > 0))


def previous_token(
    weights_NBHLS: np.ndarray, tokens_BL: np.ndarray, real_BL: np.ndarray
) -> np.ndarray:
    """Weight on the token before, of all queries that have one."""
    at = np.arange(real_BL.shape[1])
    return _mean(weights_NBHLS[..., at, np.maximum(at - 1, 0)], real_BL & (at > 0))


def induction(weights_NBHLS: np.ndarray, tokens_BL: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """Weight on what followed the query's own token before (Olsson et al. 2022), all times added.

    Of queries whose token came before; nan where there is none.
    """
    at = np.arange(real_BL.shape[1])
    same_BLS = tokens_BL[:, :, None] == tokens_BL[:, None, :]
    follows_BLS = np.zeros_like(same_BLS)
    follows_BLS[:, :, 1:] = same_BLS[:, :, :-1]
    follows_BLS &= at[:, None] >= at[None]
    found = (weights_NBHLS * follows_BLS[None, :, None]).sum(-1)
    return _mean(found, real_BL & follows_BLS.any(-1))


SCORES: dict[str, Scores] = {
    "entropy": entropy,
    "sink": sink,
    "previous_token": previous_token,
    "induction": induction,
}


def distance_profile(weights_NBHLS: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """float64[N, H, L]: the mean weight of a query on the token d before it, d = 0 … L - 1.

    Of the queries that have such a token; nan where none has.
    """
    at = np.arange(real_BL.shape[1])
    profile = [
        _mean(weights_NBHLS[..., at, np.maximum(at - d, 0)], real_BL & (at >= d)) for d in at
    ]
    return np.stack(profile, -1)


def weight_on(weights_NBHLS: np.ndarray, queries_B: np.ndarray, keys_BS: np.ndarray) -> np.ndarray:
    """float64[N, H]: the mean weight of one query of each row on one of its keys (bool[B, S]).

    Rows without such keys do not count; nan where none has any.
    """
    rows_B = np.arange(len(queries_B))
    weights_BNHS = weights_NBHLS.astype(np.float64)[:, rows_B, :, queries_B]
    weights_NBHS = np.moveaxis(weights_BNHS, 0, 1)
    number_B = keys_BS.sum(-1)
    on_NBH = (weights_NBHS * keys_BS[None, :, None]).sum(-1) / np.maximum(number_B, 1)[:, None]
    count = (number_B > 0).sum()
    total_NH = np.where((number_B > 0)[:, None], on_NBH, 0.0).sum(1)
    return total_NH / count if count else np.full_like(total_NH, np.nan)


def mean_cosine(hidden_NBLD: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """float64[N]: the mean cosine between the states of two tokens of a row, after each layer.

    1: all tokens have become one (Dong et al. 2021). Rows count alike; those of one token do not.
    """
    hidden = np.float64(hidden_NBLD)
    length = np.sqrt((hidden**2).sum(-1, keepdims=True))
    units = np.where(real_BL[None, ..., None], hidden / np.where(length > 0, length, 1.0), 0.0)
    number_B = real_BL.sum(-1)
    pairs_B = number_B * (number_B - 1)
    total_NB = (units.sum(2) ** 2).sum(-1) - (units**2).sum((2, 3))
    counts = pairs_B > 0
    return (total_NB[:, counts] / pairs_B[counts]).mean(-1)


def _mean(values_NBHL: np.ndarray, counted_BL: np.ndarray) -> np.ndarray:
    """[N, H]: over the counted queries; nan where there is none."""
    count = counted_BL.sum()
    total = np.where(counted_BL[None, :, None], np.float64(values_NBHL), 0.0).sum((1, 3))
    return total / count if count else np.full(total.shape, np.nan)
