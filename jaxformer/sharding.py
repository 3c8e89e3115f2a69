"""Where arrays live: one table from parameter paths to logical axes to mesh axes.

A parameter's path selects its logical axes (`PARAMETERS`), a logical axis selects a mesh axis
(`MESH_AXES`); no array carries sharding metadata of its own. On one device there is no mesh:
every function here takes `None` for it and `constrain` and `replicate` return their argument.

Where a vocabulary does not divide, tables have rows of zeros behind it (`pad`), which the model
cuts off: they are no part of a loss, a choice or a checkpoint.
"""

import contextlib
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxformer.errors import UserError
from jaxformer.mesh import AXES, make_mesh, place

__all__ = ["AXES", "make_mesh", "place"]

MESH_AXES: dict[str, tuple[str, ...]] = {
    # of activations: rows (with their experts), tokens of a sequence (of a cache: slots)
    "batch": ("data", "fsdp", "expert"),
    "expert_rows": ("data", "fsdp"),
    "length": ("context",),
    # of parameters and of what they give
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "ff": ("tensor",),
    "experts": ("expert",),
    "vocab": ("tensor",),
    "patch": ("tensor",),
    "positions": (),
    "layers": (),
    "vector": (),
}

# An encoder-decoder has most of these once under encoder/ and once under decoder/. A number of
# classes need not divide. None stands for any rank: whole on every device, as what position
# encodings train is small.
PARAMETERS: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    (r"(.*/)?embedding/table", ("vocab", "embed")),
    (r"embedding/kernel", ("patch", "embed")),
    (r"embedding/class_token", ("vector",)),
    (r"(.*/)?position/(\w+/)?table", ("positions", "embed")),
    (r"(.*/)?position/.+", None),
    (r"(.*/)?(cross_)?attention/query/kernel", ("embed", "heads")),
    (r"(.*/)?(cross_)?attention/(key|value)/kernel", ("embed", "kv_heads")),
    (r"(.*/)?(cross_)?attention/output/kernel", ("heads", "embed")),
    (r"(.*/)?feed_forward/(shared/)?(up|gate)/kernel", ("embed", "ff")),
    (r"(.*/)?feed_forward/(shared/)?down/kernel", ("ff", "embed")),
    (r"(.*/)?experts/(up|gate)/kernel", ("experts", "embed", "ff")),
    (r"(.*/)?experts/down/kernel", ("experts", "ff", "embed")),
    (r"(.*/)?experts/\w+/bias", ("experts", "vector")),
    (r"layers/\d+/(input|recurrent)/kernel", ("embed", "ff")),
    (r"head/kernel", ("embed", "vocab")),
    (r"head/(transform|pooler)/kernel", ("embed", "ff")),
    (r"(.*/)?(feed_forward/router|head/classifier)/kernel", ("embed", "vector")),
    (r"(.*/)?(bias|scale|sink)", ("vector",)),
)


def num_shards(mesh: Mesh | None) -> int:
    """The number of equal parts that a batch is cut into."""
    return 1 if mesh is None else axis_size(mesh, "batch")


def check_batch(mesh: Mesh | None, where: str, rows: int, parts: int = 1) -> None:
    """Raises UserError unless each of the `parts` microbatches spreads evenly over the mesh."""
    shards = num_shards(mesh)
    if rows % (shards * parts):
        axes = " × ".join(MESH_AXES["batch"][: 3 if mesh and mesh.shape["expert"] > 1 else 2])
        pieces = f"{shards} devices ({axes})" + f" × {parts} microbatches" * (parts > 1)
        mend = f"use a multiple of {shards * parts} or change mesh"
        raise UserError(where, f"{rows} rows do not divide evenly over {pieces}", mend)


def partition(*logical: str | None) -> PartitionSpec:
    """Translates logical axes to a PartitionSpec; a mesh axis serves the first that asks for it."""
    used: set[str] = set()
    spec = []
    for name in logical:
        axes = tuple(axis for axis in MESH_AXES[name] if axis not in used) if name else ()
        used.update(axes)
        spec.append(_entry(axes))
    return PartitionSpec(*spec)


def logical_axes(path: str, rank: int) -> tuple[str, ...]:
    """Looks a parameter path such as 'layers/0/attention/query/kernel' up in the table.

    Scanned layers ('layers/attention/…', 'encoder/layers/…') have the layer axis in front.
    """
    stacked = re.search(r"(^|/)layers/(?!\d+/)", path) is not None
    for pattern, axes in PARAMETERS:
        if re.fullmatch(pattern, path):
            if axes is None:
                return ("vector",) * rank
            axes = ("layers", *axes) if stacked else axes
            if len(axes) != rank:
                raise ValueError(f"{path} has rank {rank}, the table in sharding.py says {axes}")
            return axes
    raise ValueError(f"no row of PARAMETERS in sharding.py matches the parameter {path}")


def axis_size(mesh: Any, logical: str) -> int:
    """The number of pieces that a logical axis is cut into, on a mesh or an abstract one."""
    return math.prod(mesh.shape[axis] for axis in MESH_AXES[logical])


def replicated(mesh: Mesh | None) -> Sharding:
    """One full copy on every device."""
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh | None) -> Sharding:
    """Rows spread over data, fsdp, expert; whole along length: segment ids of all keys are read."""
    return replicated(mesh) if mesh is None else NamedSharding(mesh, partition("batch"))


def path_of(keys: Any) -> str:
    """Joins the keys of a pytree path with '/'."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def params_shardings(mesh: Any, abstract_params: Any) -> Any:
    """Returns a sharding for each parameter; raises UserError where a dimension does not divide.

    A vocabulary that does not divide stays whole, its mesh axes going to the other dimension where
    they divide that: so a checkpoint has it.
    """

    def sharding(keys: Any, leaf: Any) -> Sharding:
        path, shape = path_of(keys), leaf.shape
        logical = logical_axes(path, len(shape))
        if mesh is None:
            return replicated(mesh)
        spec = [_tuple(axes) for axes in partition(*logical)]
        for at, (size, axes) in enumerate(zip(shape, spec, strict=True)):
            pieces = math.prod(mesh.shape[axis] for axis in axes)
            if size % pieces == 0:
                continue
            if logical[at] != "vocab":
                raise UserError(
                    f"mesh.{axes[0]}",
                    f"{pieces} does not divide the dimension {size} of {path} {tuple(shape)}",
                    "choose sizes that divide",
                )
            spec[at], other = (), 1 - at
            both = (*spec[other], *axes)
            if shape[other] % math.prod(mesh.shape[axis] for axis in both) == 0:
                spec[other] = both
        return NamedSharding(mesh, PartitionSpec(*map(_entry, spec)))

    return jax.tree_util.tree_map_with_path(sharding, abstract_params)


def placed(mesh: Mesh | None, shapes: Any) -> Any:
    """Parameters' shapes and types with their shardings (see params_shardings)."""
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        params_shardings(mesh, shapes),
    )


def pad(mesh: Any, params: Any) -> Any:
    """Parameters with zeros behind each vocabulary, as many as it takes to cut it evenly."""
    if mesh is None:
        return params
    pieces = axis_size(mesh, "vocab")

    def one(keys: Any, x: jax.Array) -> jax.Array:
        axes = logical_axes(path_of(keys), x.ndim)
        missing = [-n % pieces * (axis == "vocab") for n, axis in zip(x.shape, axes, strict=True)]
        return jnp.pad(x, [(0, n) for n in missing]) if any(missing) else x

    return jax.tree_util.tree_map_with_path(one, params)


def fit(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The array cut to a shape, or with zeros behind it."""
    x = x[tuple(slice(size) for size in shape)]
    missing = [(0, wanted - size) for wanted, size in zip(shape, x.shape, strict=True)]
    return jnp.pad(x, missing) if x.shape != shape else x


def resized(tree: Any, abstract: Any) -> Any:
    """A tree in the shapes and on the places of another; leaves that have them stay as they are."""

    def one(x: jax.Array, like: Any) -> jax.Array:
        return x if x.shape == like.shape else _resize(like.shape, like.sharding)(x)

    return jax.tree.map(one, tree, abstract)


@functools.cache
def _resize(shape: tuple[int, ...], sharding: Sharding) -> Any:
    return jax.jit(functools.partial(fit, shape=shape), out_shardings=sharding)


def put_batch(mesh: Mesh | None, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Places this process's rows of a batch on its devices; the arrays returned are global."""
    sharding = batch_sharding(mesh)
    if mesh is None:
        return jax.device_put(dict(batch), sharding)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


def put_whole(mesh: Mesh | None, tree: Any, mode: Any = "constant") -> Any:
    """Places arrays that every process has in full, rows first, on all devices.

    Rows are added until they spread evenly: zeros, or with mode 'edge' copies of the last.
    """
    if mesh is None:
        return jax.device_put(tree, replicated(mesh))
    sharding = batch_sharding(mesh)

    def one(x: Any) -> jax.Array:
        x = np.asarray(x)
        missing = -len(x) % num_shards(mesh)
        x = np.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)], mode=mode) if missing else x
        return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])

    return jax.tree.map(one, tree)


def put_key(mesh: Mesh | None, key: jax.Array) -> jax.Array:
    """A random key that every process has, on all devices of a mesh."""
    if mesh is None:
        return key
    words = jax.device_put(np.asarray(jax.random.key_data(key)), replicated(mesh))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh on which the arrays of a tree lie; None for one device."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and AXES[0] in sharding.mesh.axis_names:
            assert isinstance(sharding.mesh, Mesh)
            return sharding.mesh
    return None


def using(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Within, `constrain` knows the mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def shards(logical: str) -> int:
    """The number of pieces that the mesh in use cuts an axis into, 1 without a mesh.

    To be asked while a function is traced.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return axis_size(mesh, logical) if AXES[0] in mesh.axis_names else 1


def constrain(x: jax.Array, *logical: str | None) -> jax.Array:
    """Pins an array inside jit to its logical axes, e.g. constrain(x_BLD, 'batch', None, None).

    A dimension that does not divide, such as one row or one new token, stays whole.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if AXES[0] not in mesh.axis_names:
        return x  # no mesh, or one over the seeds of a sweep
    return jax.lax.with_sharding_constraint(x, fitting(mesh, x.shape, *logical))


def fitting(mesh: Any, shape: tuple[int, ...], *logical: str | None) -> PartitionSpec:
    """`partition` of the dimensions of an array that divide; the others stay whole."""
    named = zip(logical, shape, strict=False)
    return partition(*(n if n and size % axis_size(mesh, n) == 0 else None for n, size in named))


def replicate(x: jax.Array) -> jax.Array:
    """One full copy on every device."""
    return constrain(x)


def _tuple(axes: Any) -> tuple[str, ...]:
    """An entry of a PartitionSpec as a tuple."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _entry(axes: tuple[str, ...]) -> Any:
    return axes if len(axes) > 1 else axes[0] if axes else None
