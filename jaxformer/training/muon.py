"""Muon (Jordan et al. 2024): momentum of matrices, made orthogonal, instead of Adam's.

A layer's kernels are matrices that act between hidden states, and a stacked one, [N, in, out] of
scanned layers or [E, in, out] of experts, is as many matrices as it has leading places: each is
made orthogonal by itself. Embeddings, heads, routers, position tables, norms and biases are not.
"""

import math
import re
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from jaxformer.config import MuonConfig
from jaxformer.sharding import path_of

MATRIX = re.compile(r"(.*/)?layers/(?!.*router/).*kernel")
EACH = MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)  # all axes before are a batch


def muon_updates(cfg: MuonConfig) -> optax.GradientTransformation:
    """Updates of a tree of matrices at rate cfg.rate, to be subtracted."""
    return optax.chain(
        scale_by_muon(ns_steps=cfg.steps, beta=cfg.momentum, weight_dimension_numbers=_each),
        optax.stateless(lambda updates, _: jax.tree.map(lambda u: _size(u, cfg.rms) * u, updates)),
        optax.add_decayed_weights(cfg.weight_decay),
        optax.scale(cfg.rate),
    )


def muon_labels(params: Any) -> Any:
    """'muon' for each leaf that is of matrices between hidden states, chosen by path, or 'adamw'.

    Never by rank: a stacked scale has two axes as well.
    """
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: "muon" if MATRIX.fullmatch(path_of(keys)) else "adamw", params
    )


def _size(update: jax.Array, rms: float) -> float:
    """What an orthogonal update of this shape is multiplied by."""
    n_in, n_out = update.shape[-2:]
    return rms * math.sqrt(max(n_in, n_out)) if rms else math.sqrt(max(1, n_out / n_in))


def _each(matrices: Any) -> Any:
    return jax.tree.map(lambda _: EACH, matrices)
