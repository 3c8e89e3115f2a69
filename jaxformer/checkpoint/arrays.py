"""The arrays of a checkpoint by path: what is saved, how the wanted differ, reading them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxformer.errors import UserError
from jaxformer.sharding import path_of

MAX_DIFFERENCES = 5  # in the one line; all of them are in the details


def flatten(tree: Any) -> dict[str, Any]:
    """The leaves by path, e.g. 'params/layers/0/attention/query/kernel'."""
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The same as dicts in dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def saved_arrays(folder: Path) -> dict[str, Any]:
    """Shapes and dtypes of what a checkpoint holds."""
    handler = ocp.PyTreeCheckpointHandler()
    return flatten(handler.metadata(folder / "state").tree)  # pyright: ignore[reportArgumentType]


def read_arrays(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the wanted arrays onto their shardings; to be checked before, for Orbax would cast."""
    abstract = nest(wanted)
    args = ocp.args.PyTreeRestore(
        item=abstract,
        restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
        partial_restore=True,
    )
    handler = ocp.PyTreeCheckpointHandler()
    leaves = flatten(handler.restore(folder / "state", args=args))  # pyright: ignore[reportArgumentType]
    return {path: leaves[path] for path in wanted}


def check_arrays(
    folder: Path,
    wanted: Mapping[str, Any],
    saved: Mapping[str, Any],
    mend: str = "use the config it was saved with or another workdir",
) -> None:
    """Raises UserError, with a diff, where a path, shape or dtype is not the one saved."""
    lines, details = [], []
    paths = wanted.keys() | saved.keys()
    for path in sorted(paths, key=lambda path: (not path.startswith("params/"), path)):
        new, old = _describe(wanted.get(path)), _describe(saved.get(path))
        if new != old:
            lines.append(f"{path} is {old}, the config says {new}")
            details += [f"- {path} {old}"] * (path in saved) + [f"+ {path} {new}"] * (
                path in wanted
            )
    if lines:
        more = len(lines) - MAX_DIFFERENCES
        listed = "; ".join(lines[:MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        raise UserError(
            f"{folder}",
            f"is of another shape: {listed}",
            mend,
            (f"--- saved in {folder}", "+++ wanted by the config", *details),
        )


def _describe(leaf: Any) -> str:
    return "absent" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
