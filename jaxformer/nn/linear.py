"""Linear maps and embedding tables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer import sharding
from jaxformer.nn import parameters
from jaxformer.nn.platform import platform


class Linear(nnx.Module):
    """y = x W (+ b). The product runs in `dtype` with float32 accumulation."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        initializer: parameters.Initializer,
        dtype: jnp.dtype,
    ):
        self.kernel = parameters.declare((in_features, out_features), initializer)
        self.bias = parameters.declare((out_features,), parameters.zeros) if bias else None
        self.dtype = dtype
        self.turned = False  # the kernel is stored [out, in]

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in] → [..., out] in `dtype`."""
        bias = None if self.bias is None else self.bias[...]
        return affine(x, self.kernel[...], bias, self.dtype, self.turned).astype(self.dtype)

    def turn(self) -> None:
        """For inference: stores the kernel, or those of all layers, in `dtype` and [out, in]."""
        self.kernel, self.turned = nnx.Param(self.kernel[...].astype(self.dtype).mT), True


class Embedding(nnx.Module):
    """A table [V, D], looked up by token id. On a mesh it may have rows behind V: see sharding."""

    def __init__(self, size: int, width: int, initializer: parameters.Initializer):
        self.size = size
        self.table = parameters.declare((size, width), initializer)

    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        """Rows float32[B, L, D]; an id outside the vocabulary gives NaN, never a clamped row."""
        table_VD = self.table[...]
        if len(table_VD) > self.size:
            ids_BL = jnp.where(ids_BL < self.size, ids_BL, len(table_VD))
        return lookup(table_VD, ids_BL, "vocab")


def lookup(table_VD: jax.Array, ids_BL: jax.Array, rows: str | None = None) -> jax.Array:
    """Rows float32[B, L, D] of a table; an id outside of it gives NaN, never a clamped row.

    `rows` is the logical axis that they are cut along, if they are.
    """
    # Looking up in a table sharded over D makes XLA rematerialise activations: only the rows may
    # be shared out, of which each device then has some.
    table_VD = sharding.constrain(table_VD, rows, None)
    how: Any = {"mode": "fill", "fill_value": jnp.nan, "wrap_negative_indices": False}
    if table_VD.dtype == jnp.bfloat16 and platform() == "cpu":
        # XLA there turns a whole table into float32 to look up numbers in it, but not bits.
        how["fill_value"] = np.array(jnp.nan, jnp.bfloat16).view(np.uint16)
        bits_BLD = jax.lax.bitcast_convert_type(table_VD, jnp.uint16).at[ids_BL].get(**how)
        x_BLD = jax.lax.bitcast_convert_type(bits_BLD, jnp.bfloat16)
    else:
        x_BLD = table_VD.at[ids_BL].get(**how)
    return sharding.constrain(x_BLD.astype(jnp.float32), "batch", "length", None)


def affine(
    x: jax.Array,
    kernel: jax.Array,
    bias_O: jax.Array | None,
    dtype: jnp.dtype,
    turned: bool = False,
) -> jax.Array:
    """x[..., I] W + b as float32[..., O]; the product takes `dtype` and accumulates in float32.

    The kernel is [I, O], turned [O, I]. Activations are flattened to two dimensions: with three,
    XLA on CPU transposes and recomputes for the weight gradient. Where their length is cut they are
    not: rows and tokens that are both cut are no one dimension that is.
    """
    flat = x if sharding.shards("length") > 1 else x.reshape(-1, x.shape[-1])
    flat, kernel = flat.astype(dtype), kernel.astype(dtype)
    one = flat.shape[:-1] == (1,) and dtype == jnp.bfloat16 and platform() == "cpu"
    if one:
        flat = jnp.pad(flat, ((0, 3), (0, 0)))  # one row takes XLA five times as long as four
    contracted = ((flat.ndim - 1,), (int(turned),)), ((), ())
    y = jax.lax.dot_general(flat, kernel, contracted, preferred_element_type=jnp.float32)
    y = y[:1] if one else y
    if bias_O is not None:
        y = y + jnp.expand_dims(bias_O, range(y.ndim - 1))
    return y.reshape(*x.shape[:-1], y.shape[-1])
