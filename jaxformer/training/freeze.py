"""Parameters that training leaves as they are, by path."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import UserError
from jaxformer.globs import matches, matching
from jaxformer.sharding import path_of


def hold(tree: Any, patterns: Sequence[str]) -> Any:
    """Gradients or updates with zeros for what is frozen: it is in no norm and not decayed."""
    if not patterns:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda keys, x: jnp.zeros_like(x) if matches(path_of(keys), patterns) else x, tree
    )


def check_frozen(params: Any, patterns: Sequence[str]) -> None:
    """Raises UserError where a pattern matches no parameter, or all are frozen."""
    paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(params)]
    if matching("train.freeze", paths, patterns) == paths:
        raise UserError("train.freeze", "matches every parameter", "leave one to train")
