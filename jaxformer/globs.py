"""Globs that name parameters by their paths: train.init_paths, train.freeze."""

import fnmatch
from collections.abc import Collection, Sequence

from jaxformer.errors import UserError


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether one of the globs matches the whole path of a parameter."""
    return any(fnmatch.fnmatchcase(path, glob) for glob in patterns)


def matching(where: str, paths: Collection[str], patterns: Sequence[str]) -> list[str]:
    """The paths that one of the globs matches, in their order.

    Raises UserError, naming the field `where`, for a glob that matches none.
    """
    for pattern in patterns:
        if not any(matches(path, [pattern]) for path in paths):
            what, mend = f"{pattern!r} matches no parameter", f"paths are like {min(paths)}"
            raise UserError(where, what, mend)
    return [path for path in paths if matches(path, patterns)]
