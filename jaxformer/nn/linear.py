"""Linear maps and embedding tables."""

import jax
import jax.numpy as jnp
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

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in] → [..., out] in `dtype`."""
        bias = None if self.bias is None else self.bias[...]
        return affine(x, self.kernel[...], bias, self.dtype).astype(self.dtype)


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
    x_BLD = table_VD.at[ids_BL].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    return sharding.constrain(x_BLD.astype(jnp.float32), "batch", "length", None)


def affine(
    x: jax.Array, kernel_IO: jax.Array, bias_O: jax.Array | None, dtype: jnp.dtype
) -> jax.Array:
    """x[..., I] W + b as float32[..., O]; the product takes `dtype` and accumulates in float32.

    Activations are flattened to two dimensions: with three, XLA on CPU transposes and recomputes
    for the weight gradient. Where their length is cut they are not: rows and tokens that are both
    cut are no one dimension that is.
    """
    flat = x if sharding.shards("length") > 1 else x.reshape(-1, x.shape[-1])
    flat, kernel_IO = flat.astype(dtype), kernel_IO.astype(dtype)
    if flat.shape[:-1] == (1,) and dtype == jnp.bfloat16 and platform() == "cpu":
        # XLA's product of one row in bfloat16 takes seven times as long as this sum.
        y = (flat.mT.astype(jnp.float32) * kernel_IO.astype(jnp.float32)).sum(0, keepdims=True)
    else:
        y = jnp.matmul(flat, kernel_IO, preferred_element_type=jnp.float32)
    if bias_O is not None:
        y = y + jnp.expand_dims(bias_O, range(y.ndim - 1))
    return y.reshape(*x.shape[:-1], kernel_IO.shape[1])
