"""The train step of a run, compiled for a slice of TPUs that need not be here."""

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.aot.chips import Topology
from jaxformer.aot.hlo import Program
from jaxformer.aot.memory import abstract_batch, average_bytes, shard_bytes
from jaxformer.config import RunConfig, check_spread
from jaxformer.errors import UserError
from jaxformer.mesh import AXES, TYPES, make_mesh
from jaxformer.models import build, init
from jaxformer.nn.kernels import check_kernel
from jaxformer.sharding import check_batch
from jaxformer.training.freeze import check_frozen
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state
from jaxformer.training.step import jit_train_step

LISTED = 5  # of the largest buffers


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled step: `seconds` it took to trace, lower and compile; bytes are one chip's."""

    topology: Topology
    mesh: Mesh
    seconds: dict[str, float]
    arguments: dict[str, int]  # bytes by kind
    outputs: int
    aliased: int  # of the outputs, in the place of arguments
    temporaries: int
    code: int
    program: Program

    @property
    def total(self) -> int:
        """Bytes that the step needs at its most."""
        arguments = sum(self.arguments.values())
        return arguments + self.outputs - self.aliased + self.temporaries + self.code


def compile_step(cfg: RunConfig, topology: Topology, devices: Sequence[Any]) -> Compiled:
    """Compiles the step that `train` would run on the slice's devices; cfg is resolved.

    Raises UserError where the mesh does not fit the slice, or the program the memory of a chip.
    """
    if cfg.objective.distillation.teacher:
        mend = "leave it out: the step is compiled without a teacher"
        raise UserError("objective.distillation.teacher", "is set besides --aot", mend)
    mesh = make_mesh(cfg.mesh, devices) or _of_one(devices[0])
    check_spread(cfg, cfg.mesh.filled(len(devices)))
    check_batch(mesh, "train.batch_size", cfg.train.batch_size, cfg.train.num_microbatches)
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    tx, schedule = make_optimizer(cfg)
    make_params, ema = lambda: init(cfg.model, jax.random.key(cfg.seed)), cfg.train.ema.decay > 0
    state = abstract_state(make_params, tx, mesh, ema=ema)
    check_frozen(state.params, cfg.train.freeze)
    batch = abstract_batch(cfg, mesh)
    if len({device.process_index for device in devices}) > 1:
        everyone = NamedSharding(mesh, PartitionSpec(AXES))
        batch["stop"] = jax.ShapeDtypeStruct((mesh.size,), np.int32, sharding=everyone)
    step = jit_train_step(graphdef, tx, schedule, cfg, state, mesh)
    times = [time.perf_counter()]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # what is eager still runs here
        check_kernel(cfg.model.attention_kernel)
        traced = step.trace(state, batch)
        times.append(time.perf_counter())
        lowered = traced.lower(lowering_platforms=("tpu",))
        times.append(time.perf_counter())
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            raise _too_large(topology, str(error)) or error
        times.append(time.perf_counter())
    found: Any = compiled.memory_analysis()
    arguments = {
        "parameters": shard_bytes(state.params),
        "optimizer state": shard_bytes(state.opt_state),
        **average_bytes(state),
        "batch": shard_bytes(batch),
    }
    arguments["counters, padding"] = found.argument_size_in_bytes - sum(arguments.values())
    return Compiled(
        topology=topology,
        mesh=mesh,
        seconds=dict(zip(("trace", "lower", "compile"), np.diff(times).tolist(), strict=True)),
        arguments=arguments,
        outputs=found.output_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        code=found.generated_code_size_in_bytes,
        program=Program(compiled.as_text()),
    )


def _of_one(device: Any) -> Mesh:
    return Mesh(np.array(device).reshape((1,) * len(AXES)), AXES, axis_types=TYPES)


def _too_large(topology: Topology, text: str) -> UserError | None:
    """What the compiler says of a program that does not fit; None where it says anything else."""
    used = re.search(r"Used (\S+) of (\S+) hbm", text)
    if "RESOURCE_EXHAUSTED" not in text or used is None:
        return None
    found = re.findall(r"\d+\. Size: (\S+)(.*?)(?=\n\s*\d+\. Size: |\Z)", text, re.DOTALL)
    lines = [f"{size.rjust(9)}  {_describe(about)}" for size, about in found[:LISTED]]
    mend = "lower train.batch_size, cut more (mesh.fsdp, mesh.tensor), or set model.remat=full"
    what = f"the step needs {used[1]}B of a chip's {used[2]}B"
    return UserError(f"--aot={topology.name}", what, mend, ("largest buffers of a chip:", *lines))


def _describe(about: str) -> str:
    shape = re.search(r"Shape: (\S+?)(?:\{|\s|$)", about)
    source = re.search(r'op_name="([^"]*)"', about)
    kind = re.search(r"Allocation type: (.*)", about)
    parts = (shape and shape[1], source and source[1], kind and kind[1])
    return "  ".join(part for part in parts if part)
