"""TPU chips that a step may be compiled for: their peaks, and topologies by name.

Numbers are of the pages docs.cloud.google.com/tpu/docs/v5e, /v5p and /v6e ("key specifications", a
chip each; read 2026-11). Their interconnect bandwidth counts both directions; half of it leaves the
chip. Capacity is what they call 16, 95 and 32 GB of HBM, in GiB, less what the runtime keeps for
itself, which only the compiler knows: it has the last word on whether a program fits.
"""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import jax

from jaxformer.errors import UserError

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peaks of one chip: FLOP/s in bfloat16, bytes of HBM, bytes/s of HBM and out of all links."""

    name: str
    flops: float
    hbm: float
    hbm_bandwidth: float
    link_bandwidth: float
    axes: int  # of the torus


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", 197e12, 16 * GIB, 819e9, 400e9 / 2, 2),
        Chip("v5p", 459e12, 95 * GIB, 2765e9, 1200e9 / 2, 3),
        Chip("v6e", 918e12, 32 * GIB, 1640e9, 800e9 / 2, 2),
    )
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice: which chips, and how many along each axis of the torus."""

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)


def parse_topology(text: str) -> Topology:
    """Reads 'v5e:16x16'. Raises UserError for a chip that is not in the table."""
    found = re.fullmatch(r"(\w+):([1-9]\d{0,3}(?:x[1-9]\d{0,3}){0,2})", text)
    if found is None or found[1] not in CHIPS:
        mend = f"give CHIP:AxB or CHIP:AxBxC, e.g. v5e:16x16; chips: {', '.join(CHIPS)}"
        raise UserError("--aot", f"is {text!r}", mend)
    topology = Topology(CHIPS[found[1]], tuple(map(int, found[2].split("x"))))
    axes = topology.chip.axes
    if len(topology.shape) != axes:
        what = f"{text} has {len(topology.shape)} axes, a {found[1]} slice has {axes}"
        raise UserError("--aot", what, f"give {found[1]}:{'x'.join('ABC'[:axes])}")
    return topology


def describe_devices(topology: Topology) -> Sequence[Any]:
    """The devices of the slice, which programs can be compiled for. Needs libtpu, but no TPU.

    Raises UserError where libtpu is missing or does not know the shape.
    """
    if importlib.util.find_spec("libtpu") is None:
        mend = "install the extra: pip install -e '.[tpu]' (no TPU is needed)"
        raise UserError("--aot", "needs libtpu", mend)
    jax.config.update("jax_platforms", "cpu")  # whatever this machine has: nothing runs here
    _quiet(topology)
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name).devices
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError("--aot", f"{topology.name} is no slice ({reason})", "see --help")


def _quiet(topology: Topology) -> None:
    """Keeps libtpu from asking a cloud about the machine it runs on, and from logging that."""
    told = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": f"{topology.chip.name}-{topology.num_chips}",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }
    for name, value in told.items():
        os.environ.setdefault(name, value)
