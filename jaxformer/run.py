"""A trained run, read back from its directory."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import MeshConfig, RunConfig, check_spread, parse_mesh
from jaxformer.config.changes import config_differences
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import PUBLISHED, UserError
from jaxformer.interop import load_published
from jaxformer.mesh import make_mesh
from jaxformer.models import Model, abstract_params, build
from jaxformer.sharding import pad, path_of, placed, resized

DTYPES = ("float32", "bfloat16")

WEIGHTS = {"": "params", "raw": "params", "ema": "ema"}  # their names in a checkpoint


@dataclasses.dataclass(frozen=True)
class Run:
    """A model with its parameters, its tokenizer, the resolved config and the step it is from.

    `data` is the fingerprint of the rows that it was trained on, `sources` those of their sources;
    `weights` says which parameters these are, raw or ema.
    """

    model: Model
    tokenizer: Tokenizer
    config: RunConfig
    step: int
    data: str
    sources: tuple[str, ...] = ()  # old checkpoints lack them
    weights: str = "raw"


def load(
    workdir: str | os.PathLike[str],
    step: int | None = None,
    mesh: MeshConfig | str = "",
    weights: str = "",
    dtype: str = "",
) -> Run:
    """Reads a run: its newest checkpoint that can be read, or the one of `step`.

    'hf:PATH' reads a folder of the Hugging Face library as a run of step 0. Parameters are put on
    one device, or on a mesh (also as `parse_mesh` reads it); whatever is done with the model then
    runs there. `weights` are the parameters as they were trained ('raw') or their average ('ema'),
    by default those that the run evaluates (eval.weights). `dtype` is that of `cast`; without it
    parameters are float32 and computed with as in training. Raises UserError where the directory is
    not a run, has no such checkpoint or weights or is damaged, or does not fit the mesh.
    """
    if weights not in WEIGHTS:
        raise UserError("weights", f"is {weights!r}", "give raw or ema")
    if os.fspath(workdir).startswith(PUBLISHED):
        if weights == "ema":
            raise UserError("weights", f"is ema, of which {workdir} has none", "give raw")
        run = _load_published(os.fspath(workdir).removeprefix(PUBLISHED), step, mesh)
    else:
        run = _load_trained(Path(workdir), step, mesh, weights)
    return cast(run, dtype) if dtype else run


def cast(run: Run, dtype: str) -> Run:
    """The run computing in 'bfloat16' or 'float32', for inference.

    In bfloat16 kernels and embedding tables are stored so, half the bytes, and so are the keys and
    values of a cache, but on CPUs. Norm scales, biases, routers and what position encodings train
    stay float32, as do norms, softmax, logits and losses. Raises UserError for another type.
    """
    if dtype not in DTYPES:
        raise UserError("dtype", f"is {dtype!r}", f"choose from {', '.join(DTYPES)}")
    cfg = dataclasses.replace(run.config, compute_dtype=dtype)
    cfg.check()

    def one(keys: Any, x: jax.Array) -> jax.Array:
        path = path_of(keys)
        halved = path.endswith(("kernel", "embedding/table"))
        halved = halved and not any(part in path for part in ("position/", "router/"))
        return x.astype(dtype) if halved else x

    params = nnx.to_pure_dict(nnx.state(run.model, nnx.Param))
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    model = nnx.merge(graphdef, jax.tree_util.tree_map_with_path(one, params))
    return dataclasses.replace(run, model=model, config=cfg)


def _load_trained(workdir: Path, step: int | None, mesh: MeshConfig | str, weights: str) -> Run:
    checkpoints = Checkpoints(workdir, read_only=True)
    if not (workdir / "config.json").exists() and not checkpoints.steps():
        what = "has no config.json and no checkpoint"
        raise UserError(f"workdir {workdir}", what, "give the --workdir of a train.py run")
    step = checkpoints.newest() if step is None else step
    if step is None:
        raise UserError(str(checkpoints.directory), "has no checkpoint", "train the run first")
    meta = checkpoints.meta(step)
    cfg = _config(workdir / "config.json", meta, step)
    tokenizer = Tokenizer.load(workdir / "tokenizer.json")
    if tokenizer.fingerprint != meta["tokenizer"]:
        what = "is not the tokenizer that the run was trained with"
        raise UserError(f"{workdir / 'tokenizer.json'}", what, "bring that one back")
    module = build(cfg.model, cfg.compute_dtype)
    graphdef, _ = nnx.split(module)
    devices = _devices(cfg, mesh)
    shapes = abstract_params(module)
    stored = placed(devices, shapes)
    live = placed(devices, jax.eval_shape(lambda tree: pad(devices, tree), shapes))
    weights = weights or cfg.eval.weights
    if weights == "ema" and not cfg.train.ema.decay:
        what = f"is ema, of which the run in {workdir} has none (train.ema.decay = 0)"
        raise UserError("weights", what, "give raw")
    params = resized(checkpoints.restore_params(step, stored, WEIGHTS[weights]), live)
    sources = tuple(meta.get("sources", ()))
    model = nnx.merge(graphdef, params)
    return Run(model, tokenizer, cfg, step, meta["data"], sources, weights)


def _devices(cfg: RunConfig, mesh: MeshConfig | str) -> Mesh | None:
    mesh = parse_mesh(mesh, cfg.mesh) if isinstance(mesh, str) else mesh
    devices = make_mesh(mesh)
    check_spread(cfg, mesh.filled(jax.device_count()))
    return devices


def _load_published(path: str, step: int | None, mesh: MeshConfig | str) -> Run:
    if step:
        raise UserError("step", f"is {step}", f"{PUBLISHED}{path} has no steps: leave it out")
    cfg, params, tokenizer = load_published(path, lambda cfg: _devices(cfg, mesh))
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    return Run(nnx.merge(graphdef, params), tokenizer, cfg, 0, "")


def _config(path: Path, meta: dict[str, Any], step: int) -> RunConfig:
    """The config of config.json, or of the checkpoint where that file is lost."""
    saved = RunConfig.from_config_dict(meta["config"])
    try:
        cfg = RunConfig.load(path)
    except UserError as error:
        line = f"warning: {path}: {error.what}, using the config in checkpoint {step}"
        print(line, file=sys.stderr)
        return saved
    if listed := config_differences(saved, cfg):
        mend = "bring it back, or remove it to use the checkpoint's"
        raise UserError(f"{path}", f"is not the config of checkpoint {step}: {listed}", mend)
    return cfg
