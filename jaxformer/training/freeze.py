"""Parameters that training leaves as they are, by path."""

import fnmatch
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import UserError
from jaxformer.sharding import path_of


def is_frozen(path: str, patterns: Sequence[str]) -> bool:
    """Whether one of the globs matches the whole path."""
    return any(fnmatch.fnmatchcase(path, glob) for glob in patterns)


def hold(tree: Any, patterns: Sequence[str]) -> Any:
    """Gradients or updates with zeros for what is frozen: it is in no norm and not decayed."""
    if not patterns:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda keys, x: jnp.zeros_like(x) if is_frozen(path_of(keys), patterns) else x, tree
    )


def check_frozen(params: Any, patterns: Sequence[str]) -> None:
    """Raises UserError where a pattern matches no parameter, or all are frozen."""
    paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns:
        if not any(is_frozen(path, [pattern]) for path in paths):
            what, mend = f"{pattern!r} matches no parameter", f"paths are like {min(paths)}"
            raise UserError("train.freeze", what, mend)
    if all(is_frozen(path, patterns) for path in paths):
        raise UserError("train.freeze", "matches every parameter", "leave one to train")
