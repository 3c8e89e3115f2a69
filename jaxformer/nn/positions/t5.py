"""Biases by buckets of distance; Raffel et al. 2020 §2.1."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import ModelConfig, T5Config
from jaxformer.nn import parameters
from jaxformer.nn.positions.base import PositionEncoding, distances


class T5(PositionEncoding):
    """A trained number for each bucket of i - j and head, shared by all layers, as in T5.

    Half the buckets hold single distances, the others grow logarithmically up to `max_distance`,
    and all that is farther is in the last one. A causal model has one bucket, 0, for later keys
    (also within the prefix of a prefix language model); an encoder gives them the second half of
    the buckets. T5 does not scale its attention logits (`model.scale_attention = False`), which
    changes how much the biases count.

    They start from N(0, 1/D), as in the Hugging Face port, and are not decayed, being biases.
    """

    trained = True

    def __init__(self, cfg: ModelConfig, causal: bool):
        self.section, self.causal = cfg.position.t5, causal
        shape = (self.section.num_buckets, cfg.num_heads)
        self.buckets = parameters.declare(shape, parameters.normal(cfg.d_model**-0.5))

    def bias(self, q_positions_BL: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
        far = self.section.max_distance
        bucket_of = jnp.asarray(buckets(np.arange(-far, far + 1), self.section, self.causal))
        near_BLS = jnp.clip(distances(q_positions_BL, k_positions_BS), -far, far)
        return jnp.moveaxis(self.buckets[...][bucket_of[near_BLS + far]], -1, 1)


def buckets(distance: np.ndarray, section: T5Config, causal: bool) -> np.ndarray:
    """The bucket of each distance i - j of a query i and a key j.

    Of n buckets for one direction, e = n/2 hold single distances and the bucket of d ≥ e is
    e + ⌊ln(d/e) / ln(max_distance/e) · (n - e)⌋, n - 1 at most. Computed in float64: where the
    quotient is whole it is not rounded down by one, as float32 may.
    """
    count = section.num_buckets
    if causal:
        offset, away = 0, np.maximum(distance, 0)
    else:
        count //= 2
        offset, away = np.where(distance < 0, count, 0), np.abs(distance)
    single = count // 2
    octaves = np.log(np.maximum(away, single) / single) / np.log(section.max_distance / single)
    wide = np.minimum(single + np.floor(octaves * (count - single) + 1e-9), count - 1)
    return offset + np.where(away < single, away, wide).astype(np.int32)
