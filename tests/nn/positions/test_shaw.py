"""Shaw et al.: vectors of clipped distances, by hand and against a loop in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.nn.positions import Shaw
from tests.builders import model_config

RNG = np.random.default_rng(0)


@functools.cache
def encoding(causal=True, values=False, most=2, **changes):
    fields = {"position.shaw.max_distance": most, "position.shaw.on_values": values}
    cfg = model_config(**{"position.kind": "shaw"} | fields | changes)
    shape = (most + 1 if causal else 2 * most + 1, cfg.head_width)
    tables = {name: RNG.normal(size=shape).astype(np.float32) for name in ("keys", "values")}
    tables = tables if values else {"keys": tables["keys"]}
    return nnx.merge(nnx.split(Shaw(cfg, causal))[0], jax.tree.map(jnp.asarray, tables)), tables


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_products_with_the_vector_of_the_distance(causal):
    """Width 4, so that they are halved; beyond 2 tokens distances are cut off."""
    shaw, tables = encoding(causal)
    q_BLHK = normal(1, 3, 2, 4)
    q_at, k_at = [[3, 9, 4]], [[3, 4, 9, 0, 1]]
    score = shaw.score(q_BLHK, None, None, jnp.array(q_at), jnp.array(k_at))
    assert score.shape == (1, 2, 3, 5)
    least = 0 if causal else -2
    for n, i in enumerate(q_at[0]):
        for m, j in enumerate(k_at[0]):
            row = min(max(i - j, least), 2) - least
            expected = q_BLHK[0, n].astype(np.float64) @ tables["keys"][row] / 2
            np.testing.assert_allclose(score[0, :, n, m], expected, atol=1e-5)


def test_logits_that_are_not_scaled():
    (shaw, _), (half, _) = encoding(scale_attention=False), encoding()
    graphdef = nnx.split(shaw)[0]
    shaw = nnx.merge(graphdef, nnx.to_pure_dict(nnx.state(half)))
    call = normal(1, 3, 2, 4), None, None, jnp.arange(3)[None], jnp.arange(3)[None]
    np.testing.assert_allclose(shaw.score(*call), 2 * half.score(*call), rtol=1e-6)


def test_outputs_have_the_vectors_by_weight():
    shaw, tables = encoding(values=True)
    weights, at = normal(2, 3, 4, 4), np.arange(4)
    mixed = shaw.mix(jnp.asarray(weights), jnp.asarray(at)[None], jnp.asarray(at)[None])
    rows = np.clip(np.subtract.outer(at, at), 0, 2)
    expected = np.einsum("BHLS,LSK->BLHK", np.float64(weights), tables["values"][rows])
    np.testing.assert_allclose(mixed, expected, atol=1e-5)
    assert encoding()[0].mix(weights, at, at) is None


def test_a_distance_is_needed():
    with pytest.raises(UserError, match="1 or more"):
        model_config(**{"position.kind": "shaw", "position.shaw.max_distance": 0})
