"""Layers under a real, compiled scan equal unrolled ones."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.models.forward import forward
from jaxformer.nn.cache import init_cache
from tests.builders import graphdef, leaves, model_config, random_params

TOKENS = np.random.default_rng(0).integers(0, 40, (2, 6)).astype(np.int32)
SEGMENT_IDS = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]], np.int32)
BATCH = {
    "tokens": TOKENS,
    "segment_ids": SEGMENT_IDS,
    "positions": None,
    "source": TOKENS[:, ::-1],
    "source_segment_ids": SEGMENT_IDS,
    "source_positions": None,
}
CHANGES = [
    {},
    {"position.kind": "rope", "norm_placement": "sandwich", "norm": "rmsnorm", "num_kv_heads": 2}
    | {"activation": "swiglu", "num_layers": 3},
    {"architecture": "encoder_decoder", "num_encoder_layers": 3, "norm_placement": "post"}
    | {"position.kind": "sinusoidal", "attention_sink": True, "qk_norm": True},
]
CAPTURE = ("attention_weights", "hidden_states")


def unstack(stacked):
    """{'layers/a': [N, …]} as {'layers/0/a': …, …}."""
    out = {}
    for name, leaf in stacked.items():
        side, found, rest = name.rpartition("layers/")
        out |= (
            {f"{side}{found}{i}/{rest}": leaf[i] for i in range(len(leaf))}
            if found
            else {name: leaf}
        )
    return out


def relative(actual, expected, tolerance, name):
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error < tolerance, (name, error)


@functools.cache
def both(index):
    found = []
    for scan_layers in (False, True):
        cfg = model_config(scan_layers=scan_layers, **CHANGES[index])

        def loss(params, cfg=cfg):
            out = forward(nnx.merge(graphdef(cfg), params), BATCH, capture=CAPTURE)
            real = SEGMENT_IDS[..., None] != 0
            return (jax.nn.log_softmax(out.logits) * real).var(), out

        found.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(random_params(cfg)))
    return found


@pytest.mark.parametrize("index", range(len(CHANGES)))
def test_logits_gradients_and_captures(index):
    (unrolled_loss, unrolled), gradient = both(index)[0]
    (scanned_loss, scanned), stacked_gradient = both(index)[1]
    relative(scanned_loss, unrolled_loss, 1e-6, "loss")
    relative(scanned.logits, unrolled.logits, 2e-6, "logits")
    for name in CAPTURE:
        relative(scanned.captured[name], unrolled.captured[name], 2e-6, name)
    expected, actual = leaves(gradient), unstack(leaves(stacked_gradient))
    assert actual.keys() == expected.keys()
    largest = max(np.abs(leaf).max() for leaf in expected.values())
    for name in expected:  # the bias of the keys has no gradient but rounding
        error = np.abs(actual[name] - expected[name]).max()
        assert error < 2e-6 * max(np.abs(expected[name]).max(), 0.1 * largest), (name, error)


def test_prefill_and_decoding():
    logits = []
    for scan_layers in (False, True):
        cfg = model_config(scan_layers=scan_layers, **CHANGES[1])

        @jax.jit
        def prefill_and_decode(params, cache, cfg=cfg):
            model = nnx.merge(graphdef(cfg), params)
            first = model(TOKENS[:, :3], SEGMENT_IDS[:, :3], cache=cache)
            second = model(TOKENS[:, 3:4], cache=first.cache)
            return first.logits, second.logits, second.cache

        found = prefill_and_decode(random_params(cfg), init_cache(cfg, 2, 5))
        logits.append(found)
    for actual, expected in zip(logits[1][:2], logits[0][:2], strict=True):
        relative(actual, expected, 2e-6, "logits")
    k_NBCGK = np.stack([layer.k for layer in logits[0][2].layers])
    relative(np.asarray(logits[1][2].layers.k), k_NBCGK, 2e-6, "cache")


@functools.cache
def loss_of(remat, scan_layers, architecture="decoder"):
    """A loss with dropout on, and parameters."""
    changes = {"dropout.residual": 0.2, "dropout.attention": 0.2, "position.kind": "rope"}
    cfg = model_config(remat=remat, scan_layers=scan_layers, architecture=architecture, **changes)

    def loss(params):
        out = forward(nnx.merge(graphdef(cfg), params), BATCH, key=jax.random.key(0))
        return jax.nn.log_softmax(out.logits).var()

    return loss, random_params(cfg)


@functools.cache
def gradients(remat, scan_layers):
    loss, params = loss_of(remat, scan_layers)
    return leaves(jax.jit(jax.grad(loss))(params))


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_recomputation_changes_no_gradient(remat, scan_layers):
    plain, again = gradients("none", scan_layers), gradients(remat, scan_layers)
    largest = max(np.abs(leaf).max() for leaf in plain.values())
    for name, leaf in plain.items():
        np.testing.assert_allclose(again[name], leaf, rtol=0, atol=3e-6 * largest, err_msg=name)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
def test_recomputation_keeps_less_for_the_backward_pass(architecture, scan_layers):
    def kept(remat):
        loss, params = loss_of(remat, scan_layers, architecture)
        residuals = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], params)
        return sum(leaf.size for leaf in jax.tree.leaves(residuals))

    assert kept("full") < kept("dots") < kept("none")
