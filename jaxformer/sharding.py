"""Where arrays live: the mesh, and one table from parameter paths to mesh axes.

A parameter's path selects its logical axes (`PARAMETERS`), a logical axis selects a mesh axis
(`MESH_AXES`); no array carries sharding metadata of its own. On one device there is no mesh:
every function here takes `None` for it and `constrain` and `replicate` return their argument.
"""

import re
from typing import Any

import jax
import numpy as np
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from jaxformer.config import MeshConfig
from jaxformer.errors import UserError

AXES = ("data", "fsdp")

MESH_AXES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "embed": ("fsdp",),
    "heads": (),
    "ff": (),
    "vocab": (),
    "length": (),
    "layers": (),
    "vector": (),
}

# An encoder-decoder has most of these once under encoder/ and once under decoder/. Linear layers of
# the heads are cut along d_model like all others; a number of classes need not divide.
# None stands for any rank: whole on every device, as what position encodings train is small.
PARAMETERS: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    (r"(.*/)?embedding/table", ("vocab", "embed")),
    (r"(.*/)?position/(\w+/)?table", ("length", "embed")),
    (r"(.*/)?position/.+", None),
    (r"(.*/)?(cross_)?attention/(query|key|value)/kernel", ("embed", "heads")),
    (r"(.*/)?(cross_)?attention/output/kernel", ("heads", "embed")),
    (r"(.*/)?feed_forward/(up|gate)/kernel", ("embed", "ff")),
    (r"(.*/)?feed_forward/down/kernel", ("ff", "embed")),
    (r"layers/\d+/(input|recurrent)/kernel", ("embed", "ff")),
    (r"head/kernel", ("embed", "vocab")),
    (r"head/(transform|pooler)/kernel", ("embed", "ff")),
    (r"head/classifier/kernel", ("embed", "vector")),
    (r"(.*/)?(bias|scale|sink)", ("vector",)),
)


def make_mesh(cfg: MeshConfig) -> Mesh | None:
    """Lays all devices out as data × fsdp; None where that is a single device.

    Raises UserError where the sizes do not multiply to the number of devices (1 × 1 always fits).
    """
    sizes, count = {"data": cfg.data, "fsdp": cfg.fsdp}, jax.device_count()
    known = int(np.prod([size for size in sizes.values() if size != -1]))
    if -1 in sizes.values():
        if count % known:
            name = next(name for name, size in sizes.items() if size != -1)
            raise UserError(
                f"mesh.{name}",
                f"{known} does not divide the {count} devices",
                "change it or the number of devices",
            )
        sizes = {name: count // known if size == -1 else size for name, size in sizes.items()}
    shape = tuple(sizes.values())
    if shape == (1, 1) and jax.process_count() == 1:
        return None
    if np.prod(shape) != count:
        raise UserError(
            "mesh",
            f"data × fsdp = {shape[0]} × {shape[1]} but there are {count} devices",
            "set one of them to -1 for the rest",
        )
    found = jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    return Mesh(by_process(found.devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def by_process(devices: np.ndarray) -> np.ndarray:
    """The devices in their order, but process by process: each reads one slice of a batch."""
    order = np.argsort([device.process_index for device in devices.flat], kind="stable")
    return devices.reshape(-1)[order].reshape(devices.shape)


def num_shards(mesh: Mesh | None) -> int:
    """The number of equal parts that a batch is cut into."""
    return 1 if mesh is None else int(np.prod([mesh.shape[axis] for axis in MESH_AXES["batch"]]))


def check_batch(mesh: Mesh | None, where: str, rows: int, parts: int = 1) -> None:
    """Raises UserError unless each of the `parts` microbatches spreads evenly over the mesh."""
    shards = num_shards(mesh)
    if rows % (shards * parts):
        pieces = f"{shards} devices (data × fsdp)" + (f" × {parts} microbatches" * (parts > 1))
        raise UserError(
            where,
            f"{rows} rows do not divide evenly over {pieces}",
            f"use a multiple of {shards * parts} or change mesh",
        )


def partition(*logical: str | None) -> PartitionSpec:
    """Translates logical axes to a PartitionSpec; a mesh axis serves the first that asks for it."""
    used: set[str] = set()
    spec = []
    for name in logical:
        axes = tuple(axis for axis in MESH_AXES[name] if axis not in used) if name else ()
        used.update(axes)
        spec.append(axes if len(axes) > 1 else axes[0] if axes else None)
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


def replicated(mesh: Mesh | None) -> Sharding:
    """One full copy on every device."""
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh | None) -> Sharding:
    """Rows spread over ('data', 'fsdp')."""
    return replicated(mesh) if mesh is None else NamedSharding(mesh, partition("batch"))


def path_of(keys: Any) -> str:
    """Joins the keys of a pytree path with '/'."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def params_shardings(mesh: Mesh | None, abstract_params: Any) -> Any:
    """Returns a sharding for each parameter; raises UserError where a dimension does not divide."""

    def sharding(keys: Any, leaf: Any) -> Sharding:
        path = path_of(keys)
        spec = partition(*logical_axes(path, len(leaf.shape)))
        if mesh is None:
            return replicated(mesh)
        for size, axis in zip(leaf.shape, spec, strict=True):
            if axis is not None and size % mesh.shape[axis]:
                raise UserError(
                    f"mesh.{axis}",
                    f"{mesh.shape[axis]} does not divide the dimension {size} of {path} "
                    f"{tuple(leaf.shape)}",
                    "choose sizes that divide",
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, abstract_params)


def put_batch(mesh: Mesh | None, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Places this process's rows of a batch on its devices; the arrays returned are global."""
    sharding = batch_sharding(mesh)
    if mesh is None:
        return jax.device_put(batch, sharding)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


def constrain(x: jax.Array, *logical: str | None) -> jax.Array:
    """Pins an array inside jit to its logical axes, e.g. constrain(x_BLD, 'batch', None, None)."""
    if AXES[0] not in jax.sharding.get_abstract_mesh().axis_names:
        return x  # no mesh, or one over the seeds of a sweep
    return jax.lax.with_sharding_constraint(x, partition(*logical))


def replicate(x: jax.Array) -> jax.Array:
    """Gathers a sharded table before a lookup, which XLA cannot partition well over columns."""
    return constrain(x)
