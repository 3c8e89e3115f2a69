"""Bytes a device by kind, from shapes and shardings alone: nothing is compiled or held."""

import math
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh

from jaxformer.analysis.accounts import module_table
from jaxformer.config import MeshConfig, RunConfig, check_spread
from jaxformer.data.blank import blank_batch
from jaxformer.errors import PUBLISHED
from jaxformer.mesh import AXES, TYPES
from jaxformer.models import abstract_params, build, init
from jaxformer.sharding import axis_size, batch_sharding, check_batch, num_shards, placed
from jaxformer.training.freeze import check_frozen
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import TrainState, abstract_state

# Modules whose kept activations lie along heads or d_ff, which the tensor axis cuts.
CUT = ("matrix", "output", "gate", "down", "head", "head (tied)")


def shard_bytes(tree: Any) -> int:
    """What one device holds of a tree of ShapeDtypeStructs with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def average_bytes(state: TrainState) -> dict[str, int]:
    """What one device holds of the average of the parameters, where there is one."""
    return {"average of parameters": shard_bytes(state.ema)} if state.ema else {}


def _teacher_bytes(cfg: RunConfig, mesh: Any) -> dict[str, int]:
    """The same of a teacher that is a run here; one of the Hugging Face library is not read."""
    name = cfg.objective.distillation.teacher
    if not name or name.startswith(PUBLISHED):
        return {}
    its = RunConfig.load(Path(name) / "config.json")
    return {"teacher": shard_bytes(placed(mesh, abstract_params(build(its.model))))}


def planned_mesh(cfg: MeshConfig, num_devices: int) -> tuple[MeshConfig, Any]:
    """(sizes, mesh) of the config, be its devices here or not; -1 stands for the rest of these.

    Of one device the mesh has it as well.
    """
    known = -1 not in cfg.to_dict().values()
    sizes = cfg if known else cfg.filled(num_devices)
    shape = tuple(getattr(sizes, axis) for axis in AXES)
    return sizes, AbstractMesh(shape, AXES, axis_types=TYPES)


def bytes_by_kind(cfg: RunConfig, num_devices: int) -> tuple[MeshConfig, dict[str, int]]:
    """(sizes of the mesh, bytes a device by kind) of a training step; cfg is resolved.

    Activations are an estimate: what the backward pass needs by `module_table`, of one microbatch.
    Raises UserError where sizes do not divide.
    """
    sizes, mesh = planned_mesh(cfg.mesh, num_devices)
    check_spread(cfg, sizes)
    check_batch(mesh, "train.batch_size", cfg.train.batch_size, cfg.train.num_microbatches)
    tx, _ = make_optimizer(cfg)
    make_params, ema = lambda: init(cfg.model, jax.random.key(cfg.seed)), cfg.train.ema.decay > 0
    state = abstract_state(make_params, tx, mesh, ema=ema)
    check_frozen(state.params, cfg.train.freeze)
    params = shard_bytes(state.params)
    return sizes, {
        "parameters": params,
        "optimizer state": shard_bytes(state.opt_state),
        **average_bytes(state),
        **_teacher_bytes(cfg, mesh),
        "gradients": params,
        "batch": shard_bytes(abstract_batch(cfg, mesh)),
        "activations (estimate)": activation_bytes(cfg, mesh),
    }


def abstract_batch(cfg: RunConfig, mesh: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of a batch of the run."""
    where = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
        for name, x in blank_batch(cfg).items()
    }


def activation_bytes(cfg: RunConfig, mesh: Any) -> int:
    """An estimate of what a device keeps for the backward pass."""
    length = cfg.data.target_length or cfg.data.length
    sizes = {"length": length, "source_length": cfg.data.length}
    tensor, total = axis_size(mesh, "heads"), 0.0
    for row in module_table(cfg.model, **sizes, compute_dtype=cfg.compute_dtype)[:-1]:
        cut = tensor if row["module"].split("/")[-1] in CUT else 1
        on_source = row["module"].split("/")[0] == "encoder"
        total += row["activation_bytes"] / cut * (cfg.data.length if on_source else length)
    rows = cfg.train.batch_size / num_shards(mesh) / cfg.train.num_microbatches
    return round(total * rows / axis_size(mesh, "length"))
