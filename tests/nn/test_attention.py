"""Options of attention, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import masks
from jaxformer.nn.attention import SelfAttention
from jaxformer.nn.context import Context
from jaxformer.nn.kernels import reference
from jaxformer.nn.kernels.reference import masked_softmax
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.masks import Visibility
from jaxformer.nn.positions import make_encodings
from tests.builders import apply, leaves, model_config, random_params

LOGITS = np.array([2.0, 0.0, -1.0])


def one_head(rule_of):
    """Weights of one query (1) on keys whose logits are LOGITS."""
    ids_BL, ids_BS = jnp.ones((1, 1), jnp.int32), jnp.ones((1, 3), jnp.int32)
    visibility = Visibility(masks.order(ids_BL), masks.order(ids_BS), ids_BL, ids_BS, False)
    k_BSGK = jnp.asarray(LOGITS, jnp.float32)[None, :, None, None]
    q_BLHK, v_BSGK = jnp.ones((1, 1, 1, 1)), jnp.arange(1.0, 4.0)[None, :, None, None]
    out_BLHK, weights_BHLS = reference.attend(q_BLHK, k_BSGK, v_BSGK, rule_of(visibility))
    weights = np.asarray(weights_BHLS)[0, 0, 0]
    np.testing.assert_allclose(out_BLHK[0, 0, 0, 0], weights @ [1, 2, 3], atol=1e-6)
    return weights


@pytest.mark.parametrize("sink", [0.0, 1.5, -30.0, 90.0])
def test_sink_takes_weight_and_gives_nothing(sink):
    weights = one_head(lambda v: Rule(v, 1.0, sink_H=jnp.array([sink])))
    expected = np.exp(LOGITS) / (np.exp(LOGITS).sum() + np.exp(sink))
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_softcap():
    weights = one_head(lambda v: Rule(v, 3.0, softcap=1.5))
    capped = 1.5 * np.tanh(3 * LOGITS / 1.5)
    np.testing.assert_allclose(weights, np.exp(capped) / np.exp(capped).sum(), atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_scale(scale):
    weights = one_head(lambda v: Rule(v, scale))
    expected = np.exp(scale * LOGITS)
    np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-6)


def test_a_masked_row_with_a_sink_gives_nothing():
    logits, mask = jnp.zeros((1, 3)), jnp.zeros((1, 3), bool)
    assert not masked_softmax(logits, mask, jnp.array([[1.0]])).any()
    gradient = jax.grad(lambda s: masked_softmax(logits, mask, s).sum())(jnp.array([[1.0]]))
    assert not gradient.any()


def test_gradient_of_a_sink():
    """d weights / d sink = - weights · sink's own weight."""

    def total(sink):
        return masked_softmax(jnp.asarray(LOGITS), jnp.ones(3, bool), sink).sum()

    sink = jnp.array([0.5])
    share = np.exp(0.5) / (np.exp(LOGITS).sum() + np.exp(0.5))
    np.testing.assert_allclose(jax.grad(total)(sink), [-(1 - share) * share], atol=1e-6)


def layer(cfg, params, x_BLD):
    """Outputs and weights of one self-attention layer on its own."""
    ids_BL = jnp.ones(x_BLD.shape[:2], jnp.int32)
    order_BL = masks.order(ids_BL)
    view = Visibility(order_BL, order_BL, ids_BL, ids_BL, True)
    encodings, extents_BL = make_encodings(cfg, True), order_BL + 1
    context = Context(
        encodings, view, order_BL, order_BL, extents_BL, None, None, None, None, frozenset()
    )
    graphdef, _ = nnx.split(SelfAttention(cfg, cfg.layer_specs(1)[0], jnp.dtype("float32")))
    out_BLD, _, weights_BHLS = nnx.merge(graphdef, params)(x_BLD, context, 0, None)
    return np.asarray(out_BLD), np.asarray(weights_BHLS)


def test_qk_norm_by_hand():
    """Each head's query and key are divided by their root mean square, then scaled."""
    cfg = model_config(
        num_layers=1, qk_norm=True, attention_bias=False, **{"position.kind": "none"}
    )
    params = random_params(cfg)["layers"][0]["attention"]
    x_BLD = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 16)), jnp.float32)
    out_BLD, weights_BHLS = layer(cfg, params, x_BLD)
    q, k = (np.float64(x_BLD[0]) @ np.float64(params[n]["kernel"]) for n in ("query", "key"))
    for h in range(4):
        qh, kh = (
            y[:, 4 * h : 4 * h + 4]
            / np.sqrt((y[:, 4 * h : 4 * h + 4] ** 2).mean(-1, keepdims=True) + 1e-5)
            * np.float64(params[name]["scale"])
            for y, name in ((q, "query_norm"), (k, "key_norm"))
        )
        scores = np.where(np.tri(5, dtype=bool), qh @ kh.T / 2, -np.inf)
        expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(weights_BHLS[0, h], expected, atol=1e-5)
    larger = params | {"query": {"kernel": 100 * params["query"]["kernel"]}}
    np.testing.assert_allclose(layer(cfg, larger, x_BLD)[0], out_BLD, atol=1e-4)


def test_a_layer_pattern_is_repeated_and_each_layer_has_its_own_reach():
    """Windows of 2 at layers 0 and 2, all at layer 1: seen in the weights themselves."""
    cfg = model_config(
        num_layers=3, layer_pattern="rope:window=2, none", **{"position.kind": "rope"}
    )
    tokens_BL = np.random.default_rng(0).integers(0, 40, (1, 6)).astype(np.int32)
    out = apply(cfg, random_params(cfg), tokens_BL, capture=["attention_weights"])
    reaches = np.tri(6) - np.tri(6, k=-2), np.tri(6), np.tri(6) - np.tri(6, k=-2)
    for weights_BHLS, reach in zip(out.captured["attention_weights"], reaches, strict=True):
        np.testing.assert_array_equal((weights_BHLS != 0).all((0, 1)), reach)


def test_a_layer_without_positions_ignores_them():
    """'none' in a pattern: with one layer of rope and one without, only the first is turned."""
    tokens_BL = np.random.default_rng(0).integers(0, 40, (1, 6)).astype(np.int32)
    positions_BL = np.arange(6, dtype=np.int32)[None] * 3
    for pattern, moves in (("none, rope", [False, True]), ("rope, none", [True, True])):
        cfg = model_config(layer_pattern=pattern, **{"position.kind": "rope"})
        near, far = (
            np.asarray(
                apply(
                    cfg, random_params(cfg), tokens_BL, positions=p, capture=["attention_weights"]
                ).captured["attention_weights"]
            )
            for p in (None, positions_BL)
        )
        assert [bool(np.abs(a - b).max() > 1e-4) for a, b in zip(near, far, strict=True)] == moves


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("projections", [True, False])
def test_biases(output, projections):
    cfg = model_config(attention_bias=projections, attention_output_bias=output)
    names = {n for n in leaves(random_params(cfg)) if n.startswith("layers/0/attention/")}
    found = {n.split("/")[-2] for n in names if n.endswith("bias")}
    expected = ["query", "key", "value"] * projections + ["output"] * output
    assert found == set(expected)
