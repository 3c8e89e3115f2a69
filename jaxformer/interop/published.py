"""A folder of the Hugging Face library as a run, and as what another run starts from."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.config import ModelConfig, RunConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.distributed import say
from jaxformer.errors import UserError
from jaxformer.globs import matches, matching
from jaxformer.interop.read import open_folder, place, read_leaves
from jaxformer.interop.settings import function_of, run_config
from jaxformer.sharding import pad, placed, resized

SHOWN = 4  # fields or parameters in a line


def load_published(
    path: str, mesh_of: Callable[[RunConfig], Mesh | None]
) -> tuple[RunConfig, dict[str, Any], Tokenizer]:
    """Config, parameters and tokenizer as of a run that was never trained.

    Parameters lie on the mesh for the config, vocabularies padded to divide.
    Raises UserError as `from_huggingface` does, and where there is no tokenizer.
    """
    folder = open_folder(Path(path))
    if folder.words is None:
        raise UserError(path, "has no tokenizer.json", "copy it too")
    words, model = folder.words, folder.config
    cfg = run_config(model, add_bos=words.add_bos, add_eos=words.add_eos)
    mesh = mesh_of(cfg)
    params = place(model, read_leaves(folder), mesh, "float32")
    live = placed(mesh, jax.eval_shape(lambda tree: pad(mesh, tree), params))
    return cfg, resized(params, live), words.tokenizer


def read_matching(
    path: str,
    model: ModelConfig,
    leaves: Mapping[str, jax.ShapeDtypeStruct],
    patterns: Sequence[str],
) -> dict[str, jax.Array]:
    """The parameters of a folder that match one of the globs, as {path: array}.

    Each tensor is put where `leaves` say before the next is read; layers are stacked there, where
    those of `model` are scanned.

    Says where the two models compute something else. Raises UserError where a pattern matches none,
    or a parameter is missing or of another shape.
    """
    wanted = set(matching("train.init_paths", leaves, patterns))
    folder = open_folder(Path(path))
    _compare(path, model, folder.config)
    paths = {p: _target(p, leaves) for row, _ in folder.rows for p in row.paths}
    lost = [p for p, (target, _) in paths.items() if target not in leaves and matches(p, patterns)]
    if folder.config.num_layers > model.num_layers and lost:
        what = f"has {folder.config.num_layers} layers, {min(lost)} among them, and this model"
        mend = "set model.num_layers, or name the layers to take in train.init_paths"
        raise UserError(path, f"{what} {model.num_layers}", mend)
    only = {p for p, (target, _) in paths.items() if target in wanted}
    parts: dict[str, dict[int, Any]] = {name: {} for name in wanted}
    for name, x in read_leaves(folder, only):
        target, layer = paths[name]
        parts[target][layer] = _put(x, leaves[target], layer)
    found: dict[str, jax.Array] = {}
    wrong = []
    for name in sorted(wanted):  # each leaf's layers are let go before the next are stacked
        layers, like = parts.pop(name), leaves[name]
        arrays = [layers[i] for i in sorted(layers)]
        shapes, is_whole = {x.shape for x in arrays}, list(layers) == [-1]
        shape = None
        if len(shapes) == 1:
            shape = arrays[0].shape if is_whole else (len(arrays), *arrays[0].shape)
        if shape == like.shape:
            stack = jax.jit(lambda *x: jnp.stack(x), out_shardings=like.sharding)
            found[name] = arrays[0] if is_whole else stack(*arrays)
        else:
            there = "absent" if shape is None else f"{list(shape)}"
            wrong.append(f"{name} is {there}, the config says {list(like.shape)}")
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        listed = "; ".join(sorted(wrong)[:SHOWN]) + more
        raise UserError(
            path, f"is of another model: {listed}", "leave them out of train.init_paths"
        )
    return {name: found[name] for name in leaves if name in found}


def _put(x: np.ndarray, like: jax.ShapeDtypeStruct, layer: int) -> Any:
    """A tensor on its shards, of one layer where `layer` is not -1; else of another shape: that."""
    where: Any = like.sharding
    if layer >= 0 and isinstance(where, NamedSharding):
        where = NamedSharding(where.mesh, PartitionSpec(*where.spec[1:]))
    if x.shape != like.shape[layer >= 0 :]:
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    x = x.astype(like.dtype)
    return jax.make_array_from_callback(x.shape, where, lambda index: x[index])


def _target(path: str, leaves: Mapping[str, Any]) -> tuple[str, int]:
    """The leaf that a parameter belongs to, and which layer of it, -1 where it is all of it."""
    before, layers, rest = path.partition("layers/")
    if path in leaves or not layers:
        return path, -1
    number, _, name = rest.partition("/")
    return f"{before}{layers}{name}", int(number)


def _compare(path: str, here: ModelConfig, there: ModelConfig) -> None:
    """Says which fields make the two models compute different things, heads and sizes aside."""
    mine, theirs = function_of(here), function_of(there)
    sizes = ("head.", "head_bias", "tie_embeddings", "vocab_size", "num_layers", "max_length")
    if here.num_layers != there.num_layers:
        sizes += ("window", "layer_pattern")  # one for each layer
    other = [
        f"model.{name} is {value}, there {theirs.get(name, 'absent')}"
        for name, value in mine.items()
        if theirs.get(name) != value and not name.startswith(sizes)
    ]
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        say(f"{path} is of a model that computes other things: {'; '.join(other[:SHOWN])}{more}")
