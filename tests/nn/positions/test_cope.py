"""CoPE: the counts and interpolated products of a worked example, masks, both directions."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.nn.positions import Cope
from tests.builders import model_config

LOGITS = np.array([0.5, -1, 2, 0.3], np.float32)  # of one query with keys 0 … 3
VECTORS = np.array([0, 0.1, 0.4, 0.2, 0], np.float32)  # their products with a query of 1


@functools.cache
def encoding(causal=True, size=5):
    fields = {"position.kind": "cope", "position.cope.num_positions": size}
    cfg = model_config(num_heads=1, d_model=1, **fields)
    vectors = jnp.asarray(VECTORS[:size, None])
    return nnx.merge(nnx.split(Cope(cfg, causal))[0], {"vectors": vectors})


def scored(mask, at=3, causal=True, size=5, logits=LOGITS):
    """What a query at `at` adds to its logits with keys 0 … 3."""
    mask = jnp.array(mask, bool)[None, None, None]
    logits, ones = jnp.asarray(logits)[None, None, None], jnp.ones((1, 1, 1, 1))
    ids = jnp.array([[at]]), jnp.arange(4)[None]
    return np.asarray(encoding(causal, size).score(ones, logits, mask, *ids))[0, 0, 0]


def test_the_worked_example():
    """Gates .622459, .268941, .880797, .574443; counts 2.34664, 1.724181, 1.45524, .574443."""
    gates = 1 / (1 + np.exp(-np.float64(LOGITS)))
    np.testing.assert_allclose(gates, [0.622459, 0.268941, 0.880797, 0.574443], atol=5e-7)
    counts = encoding().count(jnp.asarray(gates, jnp.float32)[None, None, None], None, None)
    np.testing.assert_allclose(counts[0, 0, 0], [2.34664, 1.724181, 1.45524, 0.574443], atol=1e-6)
    expected = [0.330672, 0.317254, 0.236572, 0.057444]
    np.testing.assert_allclose(scored([1, 1, 1, 1]), expected, atol=1e-6)


def test_keys_that_are_not_visible_do_not_count():
    """Without key 2 the others are nearer by its gate, whatever its logit."""
    expected = np.interp([1.465843, 0.843384, 0.574443], range(5), VECTORS)
    hidden = scored([1, 1, 0, 1])
    np.testing.assert_allclose(hidden[[0, 1, 3]], expected, atol=1e-6)
    loud = scored([1, 1, 0, 1], logits=np.where(np.arange(4) == 2, 80, LOGITS))
    np.testing.assert_array_equal(loud, hidden)


def test_counts_stop_at_the_last_vector():
    """Three vectors: key 0, which counts 2.35, has the last one, .4."""
    expected = [0.4, 0.317254, 0.236572, 0.057444]
    np.testing.assert_allclose(scored([1, 1, 1, 1], size=3), expected, atol=1e-6)


def test_an_encoder_counts_earlier_and_later_keys_apart():
    """A query at 1: keys 0 and 1 from there back, 2 and 3 from there on."""
    counts = [0.622459 + 0.268941, 0.268941, 0.880797, 0.880797 + 0.574443]
    expected = np.interp(counts, range(5), VECTORS)
    np.testing.assert_allclose(scored([1, 1, 1, 1], at=1, causal=False), expected, atol=1e-6)


def test_two_vectors_are_needed():
    with pytest.raises(UserError, match="2 or more"):
        model_config(**{"position.kind": "cope", "position.cope.num_positions": 1})
