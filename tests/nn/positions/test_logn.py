"""The logarithmic scale of queries, in the function and in the models."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn.positions.logn import scale_queries
from tests.builders import apply, graphdef, model_config, random_params

Q_BLHK = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 2, 4)), jnp.float32)
PLACES_BL = jnp.array([[0, 62, 63, 64, 127]])
EXTENTS_BL = jnp.full((1, 5), 128)


def test_the_scale():
    """128 tokens, 64 in training: ln 128 / ln 64 = 1.166667; up to 64 tokens nothing."""
    grown = np.asarray(scale_queries(Q_BLHK, PLACES_BL, EXTENTS_BL, 64, True) / Q_BLHK)
    expected = [1, 1, 1, math.log(65) / math.log(64), 1.166667]
    np.testing.assert_allclose(grown[0, :, 0, 0], expected, rtol=1e-6)
    both = scale_queries(Q_BLHK, PLACES_BL, EXTENTS_BL, 64, False)
    np.testing.assert_allclose(both, Q_BLHK * 7 / 6, rtol=1e-6)


def test_none_and_types():
    assert scale_queries(Q_BLHK, PLACES_BL, EXTENTS_BL, 0, True) is Q_BLHK
    half_BLHK = Q_BLHK.astype(jnp.bfloat16)
    assert scale_queries(half_BLHK, PLACES_BL, EXTENTS_BL, 2, True).dtype == jnp.bfloat16


@pytest.mark.parametrize(("kind", "architecture"), [("rope", "decoder"), ("alibi", "encoder")])
def test_it_joins_an_encoding(kind, architecture):
    """Texts up to the length are as before, to the bit; of longer ones a decoder's start is."""
    tokens_BL = np.random.default_rng(0).integers(0, 40, (2, 6)).astype(np.int32)
    changes = {"position.kind": kind, "architecture": architecture, "num_layers": 1}
    params = random_params(model_config(**changes))

    def logits(length, tokens_BL):
        cfg = model_config(**changes, **{"position.logn_length": length})
        return np.asarray(apply(cfg, params, tokens_BL).logits)

    plain, scaled = logits(0, tokens_BL), logits(4, tokens_BL)
    np.testing.assert_array_equal(logits(6, tokens_BL), plain)
    causal = architecture == "decoder"
    np.testing.assert_array_equal((plain == scaled).all(2)[:, :4], causal)
    assert (np.abs(plain - scaled)[:, 5:].max(2) > 1e-3).all()


def test_cross_attention_stays_as_it_is():
    """A target of one token: only the source is longer than the length."""
    source_BS = np.random.default_rng(1).integers(0, 40, (2, 6)).astype(np.int32)
    changes = {"architecture": "encoder_decoder", "num_layers": 1, "position.kind": "alibi"}
    configs = [model_config(**changes, **{"position.logn_length": n}) for n in (0, 2)]
    params = random_params(configs[0])
    hidden = np.ones((2, 6, 16), np.float32)
    decoded = [
        nnx.merge(graphdef(cfg), params).decode(
            source_BS[:, :2], hidden=jnp.asarray(hidden), source_segment_ids=jnp.ones((2, 6), int)
        )
        for cfg in configs
    ]
    np.testing.assert_array_equal(decoded[0].logits, decoded[1].logits)
