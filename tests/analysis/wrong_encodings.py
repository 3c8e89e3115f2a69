"""Position encodings, each with one mistake that people make."""

import jax
import jax.numpy as jnp

from jaxformer.nn import parameters
from jaxformer.nn.positions import Alibi, Cope, PositionEncoding, Rope, Shaw, Sinusoidal
from jaxformer.nn.positions.alibi import linear_bias
from jaxformer.nn.positions.angles import frequencies
from jaxformer.nn.positions.base import distances


class OverLength(Alibi):
    """Distances between places in the arrays, not between positions."""

    def bias(self, q_positions_BL, k_positions_BS):
        at_L, at_S = (jnp.arange(x.shape[1])[None] for x in (q_positions_BL, k_positions_BS))
        return linear_bias(jnp.asarray(self.slopes_H()), at_L, at_S)


class OfTheRow(Alibi):
    """Distances relative to the largest position of the row, be it of another document."""

    def bias(self, q_positions_BL, k_positions_BS):
        largest_B = jnp.maximum(k_positions_BS.max(1), 1)
        return super().bias(q_positions_BL, k_positions_BS) / largest_B[:, None, None, None]


class NotShared(Alibi):
    """One bias for each pair of places, without the dimension of heads."""

    def bias(self, q_positions_BL, k_positions_BS):
        return super().bias(q_positions_BL, k_positions_BS)[:, 0]


class Undeclared(Alibi):
    """Says less than what is true."""

    shift_invariant = False
    cacheable = False


class Absolute(Sinusoidal):
    """Declares to be relative."""

    shift_invariant = True


class Smeared(Sinusoidal):
    """Each embedding takes a share of the next one."""

    def embed(self, x_BLD, positions_BL):
        return super().embed(x_BLD, positions_BL) + 0.1 * jnp.roll(x_BLD, -1, axis=1)


class Clamped(PositionEncoding):
    """A table that indexing clamps, and no bound."""

    at_input = True
    shift_invariant = False
    trained = True

    def __init__(self, cfg, causal):
        self.table = parameters.declare((cfg.max_length, cfg.d_model), parameters.normal(1.0))

    def embed(self, x_BLD, positions_BL):
        return x_BLD + self.table[...][positions_BL]


class Bounded(Clamped):
    """The same table with its bound, which does not stop it from being clamped."""

    @classmethod
    def bound(cls, cfg):
        return cfg.max_length


class Coarse(Rope):
    """Angles in the type of what is turned."""

    def rotate(self, q_BLHK, k_BLGK, positions_BL, extents_BL):
        w_M = jnp.asarray(frequencies(self.width, self.section.base), q_BLHK.dtype)
        angles_BLM = (positions_BL[..., None].astype(q_BLHK.dtype) * w_M[None, None])[:, :, None]
        turns = jnp.sin(angles_BLM), jnp.cos(angles_BLM)
        return self._turn(q_BLHK, *turns), self._turn(k_BLGK, *turns)


class ByHead(Rope):
    """Heads of queries and of keys turn at speeds of their own."""

    def _turn(self, x_BLHK, sin_BL1M, cos_BL1M):
        speeds_H = jnp.arange(1, x_BLHK.shape[2] + 1) / x_BLHK.shape[2]
        return super()._turn(x_BLHK, sin_BL1M * speeds_H[None, None, :, None], cos_BL1M)


class Peeking(Alibi):
    """Looks at the values of positions in Python."""

    def bias(self, q_positions_BL, k_positions_BS):
        if q_positions_BL.max() > 3:
            return super().bias(q_positions_BL, k_positions_BS)
        return super().bias(q_positions_BL, k_positions_BS) * 1.0


class Unused(Alibi):
    """A parameter that nothing depends on."""

    trained = True

    def __init__(self, cfg, causal):
        super().__init__(cfg, causal)
        self.temperature = parameters.declare((), parameters.ones)


class Untold(Alibi):
    """A parameter, but not declared to be trained."""

    def __init__(self, cfg, causal):
        super().__init__(cfg, causal)
        self.temperature = parameters.declare((), parameters.ones)

    def bias(self, q_positions_BL, k_positions_BS):
        return super().bias(q_positions_BL, k_positions_BS) * self.temperature[...]


class Infinite(PositionEncoding):
    """Infinite at the distance 0: the softmax of a query's own key is not a number."""

    def bias(self, q_positions_BL, k_positions_BS):
        away_BLS = distances(q_positions_BL, k_positions_BS).astype(jnp.float32)
        return -jnp.log(jax.nn.relu(away_BLS))[:, None]


class CountsAll(Cope):
    """Counts keys that the query may not see."""

    def score(self, q_BLHK, logits_BHLS, mask_BHLS, q_positions_BL, k_positions_BS):
        places = q_positions_BL, k_positions_BS
        return super().score(q_BLHK, logits_BHLS, jnp.ones_like(mask_BHLS), *places)


class Narrow(Shaw):
    """Scores in the type of the queries."""

    def score(self, q_BLHK, logits_BHLS, mask_BHLS, q_positions_BL, k_positions_BS):
        places = q_positions_BL, k_positions_BS
        return super().score(q_BLHK, logits_BHLS, mask_BHLS, *places).astype(q_BLHK.dtype)
