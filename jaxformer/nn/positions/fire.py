"""Functional interpolation of relative positions; Li et al. 2024, FIRE."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.linear import Linear
from jaxformer.nn.positions.base import PositionEncoding, away

EPSILON = 1e-6


class Fire(PositionEncoding):
    """f(ψ(i - j) / (ψ(max(T, i)) + ε)), ψ(x) = ln(1 + |c| x), f a network 1 → width → H.

    T = init_length · |multiplier| and c are trained, shared by all layers (the paper's FIRE-S); its
    listing is followed. Distances are relative to the query's position once that exceeds T, so f
    never sees more than 1, and the bias is not invariant to shifts there. f's kernels are decayed
    like others; its bias, c and the multiplier are not. The listing's bias on f's output is left
    out: softmax cancels it.

    For later keys (encoders, the prefix of a prefix language model), which the listing does not
    treat, |i - j| is relative to max(T, i, j), so that the bias is symmetric and f still sees 1 at
    most.
    """

    trained = continuous = True
    shift_invariant = False

    def __init__(self, cfg: ModelConfig, causal: bool):
        section = cfg.position.fire
        self.init_length, self.unit = section.init_length, cfg.position.source.unit
        self.c = parameters.declare((), lambda key, shape: jnp.full(shape, 0.1, jnp.float32))
        self.multiplier = parameters.declare((), parameters.ones)
        self.hidden = _linear(1, section.width, bias=True)
        self.hidden.bias = parameters.declare((section.width,), parameters.uniform(-1.0, 1.0))
        self.heads = _linear(section.width, cfg.num_heads, bias=False)

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        relative_BLS = self.interpolated(q_positions_BL, k_positions_BS)
        hidden_BLSF = jax.nn.relu(self.hidden(relative_BLS[..., None]))
        return jnp.moveaxis(self.heads(hidden_BLSF), -1, 1)

    def interpolated(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        """What f is given: float32[B, L, S] from 0 to 1."""
        away_BLS = away(q_positions_BL, k_positions_BS, self.unit)
        # A later key is seen by an encoder and within the prefix of a prefix language model.
        ends = jnp.maximum(q_positions_BL[..., None], k_positions_BS[:, None])
        threshold = self.init_length * jnp.abs(self.multiplier[...])
        whole = jnp.maximum(ends.astype(jnp.float32) / self.unit, threshold)
        c = jnp.abs(self.c[...])
        return jnp.log1p(c * away_BLS) / (jnp.log1p(c * whole) + EPSILON)


def _linear(n_in: int, n_out: int, *, bias: bool) -> Linear:
    """A map whose kernel starts from U(±1/√in), as the listing's do."""
    start = parameters.uniform(-(n_in**-0.5), n_in**-0.5)
    return Linear(n_in, n_out, bias=bias, initializer=start, dtype=jnp.dtype(jnp.float32))
