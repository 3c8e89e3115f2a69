"""The long short-term memory; Hochreiter & Schmidhuber 1997, with forget gates (Gers et al. 2000).

Rows may be packed and padded anywhere: a token that begins a document meets a state of zeros, and
padding leaves the state as it is.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.linear import Linear, affine


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["h_NBD", "c_NBD", "segment_B"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class State:
    """What an LSTM knows of the tokens before: outputs and cells of all layers, float32.

    It stands where a Transformer has its cache. `segment_B` is the document of the newest token, 0
    before the first.
    """

    h_NBD: jax.Array
    c_NBD: jax.Array
    segment_B: jax.Array

    def take_rows(self, rows_R: jax.Array) -> "State":
        """A state of R rows that are copies of these, which must exist."""
        h_NBD, c_NBD = (jnp.take(x, rows_R, axis=1, mode="clip") for x in (self.h_NBD, self.c_NBD))
        return State(h_NBD, c_NBD, jnp.take(self.segment_B, rows_R, mode="clip"))

    def trade_rows(self, rows_B: jax.Array) -> "State":
        """The same for beams of one example, which trade places with each other."""
        return self.take_rows(rows_B)

    def planned(self) -> tuple[jax.Array, jax.Array]:
        """int32[B] twice, as of a cache: an LSTM has no positions."""
        return jnp.zeros_like(self.segment_B), jnp.zeros_like(self.segment_B)


def init_state(cfg: ModelConfig, batch_size: int) -> State:
    """The state before the first token."""
    zeros_NBD = jnp.zeros((cfg.num_layers, batch_size, cfg.d_model), jnp.float32)
    return State(zeros_NBD, zeros_NBD, jnp.zeros(batch_size, jnp.int32))


class LstmLayer(nnx.Module):
    """One layer: c = f c + i g, h = o tanh(c), the four gates from input and last output.

    Gates stand in the order i, f, g, o along F = 4 D. Those of the input are computed for all
    tokens at once. The bias starts at 1 for f and 0 elsewhere (Jozefowicz et al. 2015 §2.2).
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        width, self.dtype = cfg.d_model, dtype
        draw = parameters.scheme(cfg).kernel
        self.input = Linear(width, 4 * width, bias=False, initializer=draw, dtype=dtype)
        self.recurrent = Linear(width, 4 * width, bias=False, initializer=draw, dtype=dtype)
        self.bias = parameters.declare((4 * width,), _open_forget_gate)

    def __call__(
        self,
        x_BLD: jax.Array,
        starts_BL: jax.Array,
        real_BL: jax.Array,
        h_BD: jax.Array,
        c_BD: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Outputs float32[B, L, D] and the state after the last token.

        starts: tokens that begin a document; real: those that are no padding.
        """
        kernels = self.input.kernel[...], self.recurrent.kernel[...]
        how = self.dtype, self.input.turned
        gates_BLF = affine(x_BLD, kernels[0], self.bias[...], *how)
        return _recur(kernels[1], gates_BLF, starts_BL, real_BL, h_BD, c_BD, *how)


@functools.partial(jax.jit, static_argnums=(6, 7))  # op by op the loop is compiled only once
def _recur(
    kernel: jax.Array,
    gates_BLF: jax.Array,
    starts_BL: jax.Array,
    real_BL: jax.Array,
    h_BD: jax.Array,
    c_BD: jax.Array,
    dtype: jnp.dtype,
    turned: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The recurrence, given what the inputs add to the gates."""

    def step(
        carry: tuple[jax.Array, jax.Array], token: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        gates_BF, starts_B1, real_B1 = token
        h_BD, c_BD = (jnp.where(starts_B1, 0.0, x_BD) for x_BD in carry)
        gates_BF = gates_BF + affine(h_BD, kernel, None, dtype, turned)
        i_BD, f_BD, g_BD, o_BD = jnp.split(gates_BF, 4, axis=1)
        c_BD = jax.nn.sigmoid(f_BD) * c_BD + jax.nn.sigmoid(i_BD) * jnp.tanh(g_BD)
        h_BD = jax.nn.sigmoid(o_BD) * jnp.tanh(c_BD)
        h_BD, c_BD = (jnp.where(real_B1, *pair) for pair in zip((h_BD, c_BD), carry, strict=True))
        return (h_BD, c_BD), h_BD

    tokens = gates_BLF, starts_BL[..., None], real_BL[..., None]
    by_time = tuple(jnp.moveaxis(x, 1, 0) for x in tokens)
    (h_BD, c_BD), h_LBD = jax.lax.scan(step, (h_BD, c_BD), by_time)
    return jnp.moveaxis(h_LBD, 0, 1), h_BD, c_BD


def _open_forget_gate(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.zeros((4, shape[0] // 4), jnp.float32).at[1].set(1.0).reshape(-1)
