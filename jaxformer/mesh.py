"""The devices of a run as one array with named axes, and what each process reads for them."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from jaxformer.config import MeshConfig
from jaxformer.errors import UserError

# From the axis that tells its devices least to the one that tells them most, so that the last ones
# fall on the shortest links. Rows are cut over the first three.
AXES = ("data", "fsdp", "expert", "context", "tensor")
TYPES = (AxisType.Auto,) * len(AXES)


def make_mesh(cfg: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh | None:
    """Lays the devices (default: all) out along AXES; None where the sizes are all 1.

    Raises UserError where the sizes do not multiply to the number of devices (all 1 always fits,
    but not several processes), or where slices or processes do not hold whole parts.
    """
    devices = jax.devices() if devices is None else devices
    sizes = cfg.filled(len(devices))
    if sizes.is_one_device:
        if len({device.process_index for device in devices}) > 1:
            what = f"{sizes} but there are {len(devices)} devices"
            raise UserError("mesh", what, "set one of them to -1 for the rest")
        return None
    placed = arrange(sizes.shape, devices)
    if _parts(placed) is None:
        placed = by_process(placed)
    if _parts(placed) is None:
        inner = math.prod(placed.shape[3:])
        what = f"{sizes}: {inner} devices share rows, which is no part or multiple of a process's"
        raise UserError("mesh", what, "choose sizes that divide the devices of a process")
    return Mesh(placed, AXES, axis_types=TYPES)


def arrange(shape: tuple[int, ...], devices: Sequence[Any]) -> np.ndarray:
    """Devices in `shape`, neighbours on short links; slices of a pod lie along data, then fsdp."""
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices == 1:
        # A torus axis may have to be split: v6e:16x16 as 64 × 4.
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    along_data = math.gcd(shape[0], slices)
    along_fsdp = slices // along_data
    if shape[1] % along_fsdp:
        what = f"{shape[0]} × {shape[1]} cannot be shared by {slices} slices"
        mend = "links between slices are slow: make data or fsdp a multiple of them"
        raise UserError("mesh.data × mesh.fsdp", what, mend)
    between = (along_data, along_fsdp, 1, 1, 1)
    within = tuple(size // count for size, count in zip(shape, between, strict=True))
    return mesh_utils.create_hybrid_device_mesh(
        within, between, devices, allow_split_physical_axes=True
    )


def by_process(devices: np.ndarray) -> np.ndarray:
    """The devices in their order, but process by process: each reads one slice of a batch."""
    order = np.argsort([device.process_index for device in devices.flat], kind="stable")
    return devices.reshape(-1)[order].reshape(devices.shape)


def place(mesh: Mesh | None) -> tuple[int, int]:
    """(index, count): this process reads part `index` of `count` equal parts of a batch's rows.

    Processes whose devices share rows read the same part.
    """
    if mesh is None:
        return 0, 1
    parts = _parts(mesh.devices)
    assert parts is not None
    return parts[jax.process_index()]


def _parts(devices: np.ndarray) -> dict[int, tuple[int, int]] | None:
    """Each process's part of the rows, as `place`; None where one needs other than such a part."""
    shards = math.prod(devices.shape[:3])
    processes = np.array([device.process_index for device in devices.flat]).reshape(shards, -1)
    found = {}
    for process in np.unique(processes).tolist():
        rows = np.flatnonzero((processes == process).any(1))
        size = len(rows)
        if rows[-1] - rows[0] + 1 != size or shards % size or rows[0] % size:
            return None
        found[process] = int(rows[0]) // size, shards // size
    return found
