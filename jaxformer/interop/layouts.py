"""How tensors of a family lie in parameters: one row of a table for each tensor, or each few.

A layout has two directions. `read` takes the tensors of a row and gives its parameters, `write`
takes these back; both work on NumPy arrays. Linear weights are [out, in] in PyTorch and [in, out]
here, heads side by side along `out` in the order of their numbers on both sides.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    read: Callable[..., Arrays]
    write: Callable[..., Arrays]


@dataclasses.dataclass(frozen=True)
class Row:
    """The names of tensors, the paths of the parameters that they hold, and how."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    layout: Layout

    def shapes(self, of_params: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The shapes that the tensors must have; costs a byte a number at most."""
        empty = [np.broadcast_to(np.int8(0), of_params[path]) for path in self.paths]
        tensors = self.layout.write(*empty)
        return {name: x.shape for name, x in zip(self.names, tensors, strict=True)}


def _thirds(x: np.ndarray) -> Arrays:
    return tuple(np.split(x, 3, -1))


KEEP = Layout(lambda x: (x,), lambda x: (x,))
TRANSPOSE = Layout(lambda x: (x.T,), lambda x: (x.T,))
THIRDS = Layout(_thirds, lambda *parts: (np.concatenate(parts, -1),))  # [..., 3 O] <-> 3 [..., O]
# PyTorch's E matrices [out, in] <-> [E, in, out]
STACK = Layout(lambda *parts: (np.stack([x.T for x in parts]),), lambda x: tuple(m.T for m in x))
ONE_ROW = Layout(lambda x: (x[0],), lambda x: (x[None],))  # [1, V] <-> [V]


def _add_one(x: np.ndarray) -> Arrays:
    return (1 + x.astype(np.float32),)


# Gemma's norms multiply by 1 + w. Float32 whatever the file has: 1 + w needs more bits than w.
PLUS_ONE = Layout(_add_one, lambda x: (x - np.ones((), x.dtype),))


def after(count: int) -> Layout:
    """A table whose first rows are never looked up: [count + L, D] <-> [L, D]; zeros come back."""
    pad = ((count, 0), (0, 0))
    return Layout(lambda x: (x[count:],), lambda x: (np.pad(x, pad),))


def by_head(heads: int) -> Layout:
    """BLOOM's [H · 3 · K, in]: query, key and value of a head lie together; <-> 3 [in, H · K].

    Of biases [H · 3 · K] <-> 3 [H · K].
    """

    def read(x: np.ndarray) -> Arrays:
        split = x.reshape(heads, 3, -1, *x.shape[1:])
        return tuple(split[:, i].reshape(-1, *x.shape[1:]).T for i in range(3))

    def write(*parts: np.ndarray) -> Arrays:
        split = [x.T.reshape(heads, -1, *x.T.shape[1:]) for x in parts]
        return (np.stack(split, 1).reshape(-1, *split[0].shape[2:]),)

    return Layout(read, write)


def row(name: str, path: str, layout: Layout = KEEP) -> Row:
    """One tensor that is one parameter."""
    return Row((name,), (path,), layout)


def linear(name: str, path: str, bias: bool) -> list[Row]:
    """PyTorch's linear layer: NAME.weight [out, in], NAME.bias."""
    rows = [row(f"{name}.weight", f"{path}/kernel", TRANSPOSE)]
    return [*rows, row(f"{name}.bias", f"{path}/bias")] if bias else rows


def norm(name: str, path: str, bias: bool = False, scale: Layout = KEEP) -> list[Row]:
    """NAME.weight and, of a LayerNorm, NAME.bias."""
    rows = [row(f"{name}.weight", f"{path}/scale", scale)]
    return [*rows, row(f"{name}.bias", f"{path}/bias")] if bias else rows


def unstack(leaves: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by path with one leaf a layer, as `paths` has them, from scanned ones or such."""
    if leaves.keys() == paths.keys():
        return dict(leaves)
    found = {}
    for path in paths:
        before, _, rest = path.rpartition("layers/") if "layers/" in path else ("", "", "")
        number, _, name = rest.partition("/")
        stacked = f"{before}layers/{name}"
        found[path] = leaves[path] if path in leaves else leaves[stacked][int(number)]
    return found
