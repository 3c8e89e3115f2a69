"""How a run begins: where its newest checkpoint left it, with another run's parameters, or anew.

`find_start` decides and changes nothing, so that a start that is refused leaves a directory as it
was; `make_state` carries it out.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import RunConfig
from jaxformer.data import Data, changed_sources, source_fingerprints
from jaxformer.distributed import is_first, say, together
from jaxformer.errors import PUBLISHED, UserError
from jaxformer.interop import read_matching
from jaxformer.sharding import path_of, resized
from jaxformer.training.state import TrainState, initialise
from jaxformer.training.workdir import check_config, check_fresh

SHOWN = 4  # names of parameters in a line


def describe_run(cfg: RunConfig, data: Data) -> dict[str, Any]:
    """What every checkpoint of a run holds of where it comes from."""
    return {
        "config": cfg.to_dict(),
        "version": _version(),
        "tokenizer": data.tokenizer.fingerprint,
        "data": data.train.fingerprint,
        "sources": source_fingerprints(data.train),
    }


def find_start(
    cfg: RunConfig, meta: dict[str, Any], workdir: Path, saved: Checkpoints
) -> dict[str, Any]:
    """The meta of the checkpoint to go on from, {} for step 0.

    Raises UserError where the newest checkpoint is past the end or of another config, tokenizer or
    data, where all are damaged, or where there were some and are none.
    """
    newest, end = saved.latest_step() or 0, cfg.train.num_steps
    if newest > end:
        what = f"{end} is below step {newest} of the newest checkpoint"
        raise UserError("train.num_steps", what, "raise it or use another --workdir")
    step = saved.newest()
    if step is None:
        with together():
            if is_first():
                check_fresh(workdir, cfg)
        return {}
    before = saved.meta(step)
    check_config(workdir, RunConfig.from_config_dict(before["config"]), cfg)
    changed = changed_sources(cfg.data, before.get("sources", ()), meta["sources"])
    taught = cfg.objective.distillation.teacher or "none"
    for name, what in (
        ("tokenizer", "holds a run with another tokenizer"),
        ("data", f"holds a run on other data: {changed} has changed since"),
        ("teacher", f"holds a run with another teacher than {taught}"),
    ):
        if before.get(name, "") != meta.get(name, ""):
            mend = "bring it back or use another --workdir"
            raise UserError(f"workdir {workdir}", what, mend)
    if before["version"] != meta["version"]:
        say(f"checkpoint {step} is of version {before['version']}, this is {meta['version']}")
    return before


class Places(NamedTuple):
    """Shapes and shardings of a state: in training, and in checkpoints (see abstract_state)."""

    live: TrainState
    stored: TrainState


def make_state(
    cfg: RunConfig,
    before: dict[str, Any],
    saved: Checkpoints,
    places: Places,
    make_params: Callable[[], Any],
    tx: optax.GradientTransformation,
) -> TrainState:
    """The state after the checkpoint that `before` is of, or the one before the first step."""
    if before:
        state = resized(saved.restore(before["step"], places.stored), places.live)
        saved.set_aside()
        say(f"resuming from step {before['step']}")
        return state
    state = initialise(make_params, tx, places.live)
    if not cfg.train.init_from:
        return state
    params = _mixed(cfg, state.params, places)
    ema = jax.tree.map(jnp.copy, params) if state.ema else {}
    return dataclasses.replace(state, params=params, ema=ema)


def _mixed(cfg: RunConfig, params: Any, places: Places) -> Any:
    """The parameters with those of train.init_paths from another run's newest checkpoint.

    hf:PATH takes them from a folder of the Hugging Face library.
    """
    other, where = cfg.train.init_from, cfg.train.init_from
    if other.startswith(PUBLISHED):
        wanted = jax.tree_util.tree_leaves_with_path(places.stored.params)
        like = {path_of(keys): leaf for keys, leaf in wanted}
        folder = other.removeprefix(PUBLISHED)
        found = read_matching(folder, cfg.model, like, cfg.train.init_paths)
    else:
        run = Checkpoints(other, read_only=True)
        step = run.newest()
        if step is None:
            mend = f"give the --workdir of a train.py run, or {PUBLISHED}PATH"
            raise UserError("train.init_from", f"{other} has no checkpoint", mend)
        found = run.restore_matching(step, places.stored.params, cfg.train.init_paths)
        where = f"{other} at step {step}"
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    names = ", ".join([*list(found)[:SHOWN], *["…"][: len(found) > SHOWN]])
    say(f"{len(found)} of {len(leaves)} parameters are those of {where}: {names}")
    mixed = [found.get(path_of(keys), leaf) for keys, leaf in leaves]
    return resized(jax.tree.unflatten(structure, mixed), places.live.params)


def _version() -> str:
    try:
        return importlib.metadata.version("jaxformer")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
