"""Linear maps and embedding tables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer import sharding
from jaxformer.nn import parameters
from jaxformer.nn.platform import platform


class Turnable(nnx.Module):
    """What has a kernel [in, out] that may be stored [out, in], in the type of the product."""

    kernel: Any  # a parameter, or None
    dtype: jnp.dtype
    turned: bool = False

    def turn(self) -> bool:
        """For inference: stores the kernel, or those of all layers, so; whether that was new."""
        if self.turned or self.kernel is None:
            return False
        self.kernel, self.turned = nnx.Param(self.kernel[...].astype(self.dtype).mT), True
        return True


class Linear(Turnable):
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
        return affine(x, self.kernel[...], bias, self.dtype, self.turned).astype(self.dtype)


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
    x_BLD = _rows(table_VD, ids_BL)
    return sharding.constrain(x_BLD.astype(jnp.float32), "batch", "length", None)


@jax.custom_jvp
def _rows(table_VD: jax.Array, ids_BL: jax.Array) -> jax.Array:
    """The rows in the table's type; of a table in bfloat16 on a CPU looked up as bits.

    XLA there turns a whole table into float32 to look up numbers in it, but not bits.
    """
    if table_VD.dtype != jnp.bfloat16 or platform() != "cpu":
        return _plain_rows(table_VD, ids_BL, jnp.nan)
    bits_VD = jax.lax.bitcast_convert_type(table_VD, jnp.uint16)
    nan = np.array(jnp.nan, jnp.bfloat16).view(np.uint16)
    return jax.lax.bitcast_convert_type(_plain_rows(bits_VD, ids_BL, nan), jnp.bfloat16)


@_rows.defjvp
def _rows_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return _rows(*primals), _plain_rows(tangents[0], primals[1], jnp.nan)


def _plain_rows(table_VD: jax.Array, ids_BL: jax.Array, other: Any) -> jax.Array:
    return table_VD.at[ids_BL].get(mode="fill", fill_value=other, wrap_negative_indices=False)


def affine(
    x: jax.Array,
    kernel: jax.Array,
    bias_O: jax.Array | None,
    dtype: jnp.dtype,
    turned: bool = False,
) -> jax.Array:
    """x[..., I] W + b as float32[..., O]; the product takes `dtype` and accumulates in float32.

    The kernel is [I, O], or turned [O, I]. Activations are flattened to two dimensions: with three,
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
