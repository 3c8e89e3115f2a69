"""A trained run, read back from its directory."""

import dataclasses
import os
import sys
from pathlib import Path

import jax
from flax import nnx

from jaxformer.checkpoint import Checkpoints, Unreadable
from jaxformer.config import RunConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.models import Model, abstract_params, build


@dataclasses.dataclass(frozen=True)
class Run:
    """A model with its parameters, its tokenizer, the resolved config and the step it is from.

    `data` is the fingerprint of the rows that it was trained on.
    """

    model: Model
    tokenizer: Tokenizer
    config: RunConfig
    step: int
    data: str


def load(workdir: str | os.PathLike[str], step: int | None = None) -> Run:
    """Reads a run: its newest checkpoint that can be read, or the one of `step`.

    Raises UserError where the directory is not a run, has no such checkpoint, or is damaged.
    """
    workdir = Path(workdir)
    if not (workdir / "config.json").exists():
        raise UserError(
            f"workdir {workdir}", "has no config.json", "give the --workdir of a train.py run"
        )
    cfg = RunConfig.load(workdir / "config.json")
    tokenizer = Tokenizer.load(workdir / "tokenizer.json")
    module = build(cfg.model, cfg.compute_dtype)
    graphdef, _ = nnx.split(module)
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        step, params = _restore(checkpoints, step, module)
        data = checkpoints.meta(step).get("data", "")
    finally:
        checkpoints.close()
    return Run(nnx.merge(graphdef, params), tokenizer, cfg, step, data)


def _restore(checkpoints: Checkpoints, step: int | None, module: nnx.Module) -> tuple[int, dict]:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        abstract_params(module),
    )
    if step is not None:
        return step, checkpoints.restore_params(step, abstract)
    if not checkpoints.steps():
        raise UserError(str(checkpoints.directory), "has no checkpoint", "train the run first")
    failure = None
    for latest in reversed(checkpoints.steps()):
        try:
            return latest, checkpoints.restore_params(latest, abstract)
        except Unreadable as error:
            print(f"warning: {error.where}: {error.what}", file=sys.stderr)
            failure = failure or error
    assert failure is not None
    raise failure
