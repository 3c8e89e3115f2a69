"""Positions that count what a query finds worth counting; Golovneva et al. 2024, CoPE."""

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.positions.base import PositionEncoding, distances


class Cope(PositionEncoding):
    """Adds q_i · e[p_ij], p_ij = Σ_{k = j … i} σ(logit_ik) over visible keys, at most N - 1.

    The paper's §4 and its listing: gates come from the scaled logits, between two whole positions
    q_i · e is interpolated, and heads share the N = `num_positions` vectors e, which start at 0.
    So do layers, which have their own there; vectors are not decayed.

    Ids are not read: keys are counted in the order of their document, from the last visible one
    back. An encoder, which the paper does not treat, counts earlier and later keys (by ids) apart,
    each from the query on.
    """

    trained = continuous = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.causal, self.size = causal, cfg.position.cope.num_positions
        self.vectors = parameters.declare((self.size, cfg.head_width), parameters.zeros)

    def score(
        self,
        q_BLHK: jax.Array,
        logits_BHLS: jax.Array,
        mask_BHLS: jax.Array,
        q_positions_BL: jax.Array,
        k_positions_BS: jax.Array,
    ) -> jax.Array:
        gates_BHLS = jnp.where(mask_BHLS, jax.nn.sigmoid(logits_BHLS), 0)
        counts_BHLS = self.count(gates_BHLS, q_positions_BL, k_positions_BS)
        vectors_NK = self.vectors[...].astype(q_BLHK.dtype)
        products_BHLN = jnp.einsum(
            "BLHK,NK->BHLN", q_BLHK, vectors_NK, preferred_element_type=jnp.float32
        )
        below_BHLS = jnp.floor(counts_BHLS)
        share_BHLS, at_BHLS = counts_BHLS - below_BHLS, below_BHLS.astype(jnp.int32)
        above_BHLS = jnp.minimum(at_BHLS + 1, self.size - 1)
        low, high = (jnp.take_along_axis(products_BHLN, n, -1) for n in (at_BHLS, above_BHLS))
        return (1 - share_BHLS) * low + share_BHLS * high

    def count(
        self, gates_BHLS: jax.Array, q_positions_BL: jax.Array, k_positions_BS: jax.Array
    ) -> jax.Array:
        """The positions p, float32[B, H, L, S]."""
        if self.causal:
            sums_BHLS = jax.lax.cumsum(gates_BHLS, axis=3, reverse=True)
        else:
            is_later_B1LS = distances(q_positions_BL, k_positions_BS)[:, None] < 0
            earlier_BHLS = jnp.where(is_later_B1LS, 0, gates_BHLS)
            sums_BHLS = jnp.where(
                is_later_B1LS,
                jax.lax.cumsum(gates_BHLS - earlier_BHLS, axis=3),
                jax.lax.cumsum(earlier_BHLS, axis=3, reverse=True),
            )
        return jnp.minimum(sums_BHLS, self.size - 1)
