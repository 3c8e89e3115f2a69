"""How parameters are declared and initialised.

Modules declare parameters by shape and initializer and hold no numbers: a module built from a
config is abstract and costs no memory. `fill` draws each leaf from a key folded with the crc32 of
its path, so two models that differ in one option start equal everywhere else, and a stacked
(scanned) leaf equals the stack of its per-layer leaves bit for bit.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig

Initializer = Callable[[jax.Array, Sequence[int]], jax.Array]


def declare(shape: Sequence[int], initializer: Initializer) -> nnx.Param:
    """A float32 parameter without a value."""
    return nnx.Param(jax.ShapeDtypeStruct(tuple(shape), jnp.float32), initializer=initializer)


def zeros(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.zeros(shape, jnp.float32)


def ones(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.ones(shape, jnp.float32)


def normal(stddev: float) -> Initializer:
    """N(0, stddev²)."""

    def initializer(key: jax.Array, shape: Sequence[int]) -> jax.Array:
        # The barrier keeps XLA from fusing the scale into the draw, which would change the last
        # bit between a stacked and a single leaf.
        return stddev * jax.lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32))

    return initializer


def uniform(low: float, high: float) -> Initializer:
    """U(low, high)."""
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, low, high)


def xavier_uniform(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """U(-a, a), a = sqrt(6 / (fan_in + fan_out)), for a kernel [in, out]; Glorot 2010 eq. 16."""
    bound = math.sqrt(6 / sum(shape))
    draw = jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0)
    return bound * jax.lax.optimization_barrier(draw)


def truncated_normal(stddev: float) -> Initializer:
    """N(0, stddev²) cut at two standard deviations (of the uncut normal)."""

    def initializer(key: jax.Array, shape: Sequence[int]) -> jax.Array:
        draw = jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
        return stddev * jax.lax.optimization_barrier(draw)

    return initializer


def lecun_normal(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """N(0, 1 / fan_in) for a kernel [in, out]; LeCun et al. 1998 §4.6."""
    return normal(shape[0] ** -0.5)(key, shape)


def for_each(initializer: Initializer) -> Initializer:
    """Draws each of the arrays [E, ...] by itself: a fan-in does not count their number."""

    def drawn(key: jax.Array, shape: Sequence[int]) -> jax.Array:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(shape[0]))
        return jax.vmap(lambda k: initializer(k, shape[1:]))(keys)

    return drawn


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One initializer for each role: kernels, queries, kernels that write to the residual stream
    (attention and feed-forward outputs), embedding tables."""

    kernel: Initializer
    query: Initializer
    residual: Initializer
    embedding: Initializer


def scheme(cfg: ModelConfig) -> Scheme:
    """The initialisation that `model.initializer` names.

    gpt2: N(0, .02²), residual outputs divided by sqrt(2 N), Radford et al. 2019 §2.3 · bert:
    truncated N(0, .02²), Devlin et al. 2019 · xavier: Glorot uniform, embeddings N(0, 1/D), as in
    Vaswani et al. 2017's code · t5: N(0, 1/fan_in), queries N(0, 1/(D K)) since T5 does not scale
    its logits, embeddings N(0, 1), Raffel et al. 2020's code · lecun: N(0, 1/fan_in), embeddings
    N(0, 1/D).
    """
    small = normal(0.02)
    by_width, truncated = normal(cfg.d_model**-0.5), truncated_normal(0.02)
    match cfg.initializer:
        case "gpt2":
            writers = 2 * max(cfg.num_layers, cfg.encoder_layers)
            return Scheme(small, small, normal(0.02 * writers**-0.5), small)
        case "bert":
            return Scheme(truncated, truncated, truncated, truncated)
        case "xavier":
            return Scheme(xavier_uniform, xavier_uniform, xavier_uniform, by_width)
        case "t5":
            query = normal((cfg.d_model * cfg.head_width) ** -0.5)
            return Scheme(lecun_normal, query, lecun_normal, normal(1.0))
        case _:
            return Scheme(lecun_normal, lecun_normal, lecun_normal, by_width)


def fill(module: nnx.Module, key: jax.Array) -> dict[str, Any]:
    """The parameters of an abstract module as a pure nested dict of float32 arrays."""
    filled = []
    for path, variable in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        initializer, shape = variable.get_metadata()["initializer"], variable.get_value().shape
        stack_at = _stack_index(path)
        if stack_at is None:
            leaf = initializer(_path_key(key, path), shape)
        else:
            names = [(*path[:stack_at], i, *path[stack_at:]) for i in range(shape[0])]
            keys = jnp.stack([_path_key(key, name) for name in names])
            leaf = jax.vmap(lambda k, f=initializer, s=shape[1:]: f(k, s))(keys)
        filled.append((path, leaf))
    return nnx.to_pure_dict(nnx.from_flat_state(filled))


def _path_key(key: jax.Array, path: Sequence[Any]) -> jax.Array:
    return jax.random.fold_in(key, zlib.crc32("/".join(map(str, path)).encode()))


def _stack_index(path: Sequence[Any]) -> int | None:
    """Where the layer number is missing from the path of a stacked leaf."""
    after = path.index("layers") + 1 if "layers" in path else 0
    return after if after and not isinstance(path[after], int) else None
