"""Tiny models with numbers worth testing, and pairwise covers of grids of options."""

import contextlib
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache
from ml_collections import ConfigDict

from configs import base
from jaxformer.config import ModelConfig
from jaxformer.models import Model, Output, abstract_params, build

TINY = {
    "num_layers": 2,
    "d_model": 16,
    "num_heads": 4,
    "d_ff": 32,
    "vocab_size": 40,
    "max_length": 16,
}

# Each axis names its values; a value is a set of changes to the tiny config.
GRID: dict[str, dict[str, dict[str, Any]]] = {
    "position": {
        "none": {"position.kind": "none"},
        "sinusoidal": {"position.kind": "sinusoidal"},
        "sin_cos": {"position.kind": "sinusoidal", "position.sinusoidal.layout": "concatenated"},
        "learned": {"position.kind": "learned"},
        "rope": {"position.kind": "rope"},
        "rope_half": {"position.kind": "rope", "position.rope.fraction": 0.5},
        "rope_pairs": {"position.kind": "rope", "position.rope.layout": "interleaved"},
    },
    "placement": {p: {"norm_placement": p} for p in ("pre", "post", "sandwich", "none")},
    "norm": {
        "layernorm": {"norm": "layernorm"},
        "unbiased": {"norm": "layernorm", "layernorm.bias": False},
        "rmsnorm": {"norm": "rmsnorm"},
    },
    "heads": {"mha": {}, "gqa": {"num_kv_heads": 2}, "mqa": {"num_kv_heads": 1}},
    "activation": {a: {"activation": a} for a in ("relu", "gelu", "geglu", "swiglu")},
    "experts": {
        "": {},
        "experts": {"moe.num_experts": 4},
        "switch": {"moe.num_experts": 3, "moe.top_k": 1, "moe.normalize_top_k": False}
        | {"moe.shared_d_ff": 8, "moe.d_ff": 24, "d_ff": 0, "moe.capacity_factor": 1.0},
    },
    "attention_bias": {"b": {"attention_bias": True}, "": {"attention_bias": False}},
    "ff_bias": {"b": {"feed_forward_bias": True}, "": {"feed_forward_bias": False}},
    "output_bias": {"b": {"attention_output_bias": True}, "": {"attention_output_bias": False}},
    "head": {
        "tied": {"tie_embeddings": True, "scale_logits": True},
        "untied": {"tie_embeddings": False, "head_bias": True, "scale_embeddings": True},
        "capped": {"logit_softcap": 2.0},
    },
    "scale": {"scaled": {}, "unscaled": {"scale_attention": False}},
    "qk": {"": {}, "qk_norm": {"qk_norm": True}},
    "cap": {"": {}, "cap": {"attention_softcap": 1.5}},
    "sink": {"": {}, "sink": {"attention_sink": True}},
    "window": {"": {}, "near": {"window": 3}},
    "embedding_norm": {"": {}, "normed": {"embedding_norm": True}},
    "residual": {"": {}, "cut": {"residual": False}},
    "remat": {"": {}, "full": {"remat": "full"}, "dots": {"remat": "dots"}},
    "final": {f: {"final_norm": f} for f in ("auto", "true", "false")},
    "layers": {"unrolled": {"scan_layers": False}, "scanned": {"scan_layers": True}},
}

POSITION_SPREADS = {
    "log_slopes": 0.5,
    "buckets": 0.5,
    "r1": 0.5,
    "r2": 0.5,
    "c": 0.5,
    "multiplier": 0.3,
    "keys": 0.5,
    "values": 0.5,
    "vectors": 0.5,
}


def model_config(**overrides: Any) -> ModelConfig:
    """The tiny config with fields changed by path: model_config(**{'position.kind': 'rope'})."""
    return ModelConfig.from_config_dict(change(base.model(), TINY | overrides))


def change(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """Sets fields by path, in place."""
    for path, value in changes.items():
        *parents, name = path.split(".")
        section = functools.reduce(lambda s, parent: s[parent], parents, config)
        section[name] = value
    return config


@functools.cache
def graphdef(cfg: ModelConfig, compute_dtype: str = "float32") -> nnx.GraphDef:
    return nnx.split(build(cfg, compute_dtype))[0]


def random_params(cfg: ModelConfig, seed: int = 0) -> dict[str, Any]:
    """Parameters far from any initialisation: large kernels, biases and scales that matter.

    Keyed by path like `init`, so that a stacked leaf is the stack of its layers' leaves.
    """

    def draw(path: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray:
        name = "/".join(map(str, path))
        x = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(size=shape)
        spreads = {
            "table": 0.4,
            "bias": 0.3,
            "scale": 0.3,
            "sink": 1.0,
            "class_token": 0.3,
        } | POSITION_SPREADS
        spread = shape[-2] ** -0.5 if path[-1] == "kernel" else spreads[path[-1]]
        return (x * spread + (path[-1] in ("scale", "multiplier"))).astype(np.float32)

    def leaf(keys: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        path = tuple(key.key for key in keys)
        if "layers" in path and cfg.scan_layers:
            after = path.index("layers") + 1
            names = [(*path[:after], i, *path[after:]) for i in range(like.shape[0])]
            return jax.numpy.asarray(np.stack([draw(name, like.shape[1:]) for name in names]))
        return jax.numpy.asarray(draw(path, like.shape))

    return jax.tree_util.tree_map_with_path(leaf, abstract_params(build(cfg)))


def make_model(cfg: ModelConfig, seed: int = 0, compute_dtype: str = "float32") -> Model:
    """A concrete model."""
    return nnx.merge(graphdef(cfg, compute_dtype), random_params(cfg, seed))


def apply(cfg: ModelConfig, params: Any, *args: Any, **kwargs: Any) -> Output:
    """Calls the model eagerly: ops compiled for one config serve all others.

    A scan would be compiled anew on each call; without jit it runs as a Python loop.
    tests/nn/test_stack.py has the real scan.
    """
    with jax.disable_jit(cfg.scan_layers):
        return nnx.merge(graphdef(cfg), params)(*args, **kwargs)


def pairwise(
    axes: Mapping[str, Sequence[str]], fits: Callable[[Mapping[str, str]], bool] = lambda row: True
) -> list[dict[str, str]]:
    """Few rows in which any two values of different axes meet at least once (greedily).

    `fits` tells whether a part of a row is possible; pairs that are not are left out.
    """

    def pairs(row: Mapping[str, str]) -> set[frozenset[tuple[str, str]]]:
        return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}

    missing: dict[frozenset[tuple[str, str]], None] = {}  # a dict keeps the order: deterministic
    for (a, a_values), (b, b_values) in itertools.combinations(axes.items(), 2):
        for x, y in itertools.product(a_values, b_values):
            missing[frozenset(((a, x), (b, y)))] = None
    rows = []
    while missing:
        first = next(iter(missing))
        row = dict(first)
        if not fits(row):
            del missing[first]
            continue
        for name in axes:
            if name not in row:
                values = [value for value in axes[name] if fits(row | {name: value})]
                gains = [
                    sum(frozenset(((name, value), item)) in missing for item in row.items())
                    for value in values
                ]
                row[name] = values[gains.index(max(gains))]
        missing = {pair: None for pair in missing if pair not in pairs(row)}
        rows.append({name: row[name] for name in axes})
    return rows


def grid_config(row: Mapping[str, str], **overrides: Any) -> ModelConfig:
    """The config of a row of a cover of GRID."""
    changes: dict[str, Any] = {}
    for axis, value in row.items():
        changes |= GRID[axis][value]
    return model_config(**(changes | overrides))


PAIRS = pairwise({axis: list(values) for axis, values in GRID.items()})


def product() -> list[dict[str, str]]:
    """Every combination of the axes that meet in attention and the block; the others take turns.

    The product of all axes has millions of rows.
    """
    full = ("position", "placement", "heads", "layers")
    rows = []
    for n, values in enumerate(itertools.product(*(GRID[axis] for axis in full))):
        row = dict(zip(full, values, strict=True))
        rest = [(axis, list(GRID[axis])) for axis in GRID if axis not in full]
        rows.append(row | {axis: names[n * 7 // 2 % len(names)] for axis, names in rest})
    return rows


def row_id(row: Mapping[str, str]) -> str:
    return "-".join(value for value in row.values() if value)


def leaves(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a tree by path 'a/b/c'."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(keys): np.asarray(leaf) for keys, leaf in flat}


@contextlib.contextmanager
def without_compile_cache() -> Iterator[None]:
    """For what a compilation prints or counts: a cached program does neither."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether it is used is itself remembered
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
