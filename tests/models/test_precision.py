"""bfloat16 activations: parameters, logits and gradients stay float32 and close."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn.cache import init_cache
from tests.builders import graphdef, leaves, model_config, random_params

TOKENS = np.random.default_rng(0).integers(0, 40, (4, 6)).astype(np.int32)
CHANGES = {
    "default": {},
    "llama": {"norm": "rmsnorm", "position.kind": "rope", "activation": "swiglu"},
    "post": {"norm_placement": "post", "position.kind": "sinusoidal", "scale_embeddings": True},
}


def model(cfg, params, compute_dtype):
    return nnx.merge(graphdef(cfg, compute_dtype), params)


@pytest.mark.parametrize("name", CHANGES)
def test_bfloat16_logits_are_close_to_float32(name):
    cfg = model_config(**CHANGES[name])
    params = random_params(cfg)
    exact, rounded = (model(cfg, params, dtype)(TOKENS) for dtype in ("float32", "bfloat16"))
    assert rounded.hidden.dtype == jnp.bfloat16
    assert exact.logits.dtype == rounded.logits.dtype == jnp.float32
    error = np.asarray(rounded.logits - exact.logits)
    spread = np.asarray(exact.logits).std()
    assert np.sqrt((error**2).mean()) < 0.02 * spread
    assert (error != 0).any()


def test_gradients_of_bfloat16_activations_are_float32_and_close():
    cfg = model_config(**CHANGES["llama"])
    params = random_params(cfg)
    exact, rounded = (
        leaves(jax.grad(lambda p, d=dtype: model(cfg, p, d)(TOKENS).logits.var())(params))
        for dtype in ("float32", "bfloat16")
    )
    for path, gradient in exact.items():
        assert rounded[path].dtype == np.float32
        if np.abs(gradient).max() > 1e-3:  # the bias of the keys has none
            error = np.linalg.norm(rounded[path] - gradient) / np.linalg.norm(gradient)
            assert error < 0.1, path  # dozens of roundings of 2**-9 on the way


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16"])
def test_a_cache_of_either_type(cache_dtype):
    cfg = model_config(**CHANGES["llama"])
    params = random_params(cfg)
    full_BLV = np.asarray(model(cfg, params, "bfloat16")(TOKENS).logits)
    cache = init_cache(cfg, 4, 14, cache_dtype)
    out = model(cfg, params, "bfloat16")(TOKENS, cache=cache)
    assert out.cache.layers[0].k.dtype == cache_dtype
    np.testing.assert_allclose(out.logits, full_BLV, atol=1e-5)
