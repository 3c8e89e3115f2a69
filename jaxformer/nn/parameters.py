"""How parameters are declared and initialised.

Modules declare parameters by shape and initializer and hold no numbers: a module built from a
config is abstract and costs no memory. `fill` draws each leaf from a key folded with the crc32 of
its path, so two models that differ in one option start equal everywhere else, and a stacked
(scanned) leaf equals the stack of its per-layer leaves bit for bit.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

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


def xavier_uniform(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """U(-a, a), a = sqrt(6 / (fan_in + fan_out)), for a kernel [in, out]; Glorot 2010 eq. 16."""
    bound = math.sqrt(6 / sum(shape))
    draw = jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0)
    return bound * jax.lax.optimization_barrier(draw)


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
