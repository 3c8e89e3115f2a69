"""Worked numbers from course notes and papers; DESIGN's `reference/textbook_tables.md` §1."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models import abstract_params, build
from jaxformer.nn import masks
from jaxformer.nn.attention import SelfAttention
from jaxformer.nn.block import Block
from jaxformer.nn.cache import init_cache
from jaxformer.nn.kernels import reference
from jaxformer.nn.kernels.rule import Rule
from jaxformer.nn.masks import Visibility
from jaxformer.nn.positions import Rope, Sinusoidal
from tests.builders import model_config


def count(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def sinusoids(d_model: int, positions) -> np.ndarray:
    cfg = model_config(d_model=d_model, **{"position.kind": "sinusoidal"})
    return np.asarray(Sinusoidal(cfg, True).table(jnp.asarray([positions])))[0]


def test_sinusoidal_values():
    start, first = sinusoids(20, [0, 1])
    np.testing.assert_array_equal(start, np.tile([0, 1], 10))
    np.testing.assert_allclose(first[0:6:2], [0.841471, 0.387674, 0.157827], atol=1e-6)
    np.testing.assert_allclose(first[1:6:2], [0.540302, 0.921796, 0.987467], atol=1e-6)


@pytest.mark.parametrize("p", [0, 1, 50, 1000])
def test_sinusoidal_products_depend_on_the_distance_only(p):
    distances = np.array([0, 1, 2, 4, 8, 16, 32, 64])
    vectors = sinusoids(64, np.r_[p, p + distances])
    expected = [32.0, 30.9, 28.3, 23.9, 22.4, 19.4, 19.6, 13.9]
    np.testing.assert_allclose(vectors[1:] @ vectors[0], expected, atol=0.06)


def test_sinusoidal_shifts_are_rotations():
    """PE(p + k) = M_k PE(p), M_k made of 2 × 2 rotations that know k only."""
    d, k = 16, 5
    rotation = np.zeros((d, d))
    for m in range(d // 2):
        angle = k * 10000 ** (-2 * m / d)
        c, s = math.cos(angle), math.sin(angle)
        rotation[2 * m : 2 * m + 2, 2 * m : 2 * m + 2] = [[c, s], [-s, c]]
    positions = np.array([0, 3, 40, 100])
    np.testing.assert_allclose(
        sinusoids(d, positions) @ rotation.T, sinusoids(d, positions + k), atol=2e-5
    )


def attend(q, k, v, causal=False):
    """The kernel on one row and one head."""
    q_BLHK, k_BSGK, v_BSGK = (jnp.asarray(x, jnp.float32)[None, :, None] for x in (q, k, v))
    q_ids_BL, k_ids_BS = (jnp.ones((1, x.shape[1]), jnp.int32) for x in (q_BLHK, k_BSGK))
    q_order_BL, k_order_BS = masks.order(q_ids_BL), masks.order(k_ids_BS)
    visibility = Visibility(q_order_BL, k_order_BS, q_ids_BL, k_ids_BS, causal)
    rule = Rule(visibility, q_BLHK.shape[-1] ** -0.5)
    out_BLHK, weights_BHLS = reference.attend(q_BLHK, k_BSGK, v_BSGK, rule)
    return np.asarray(weights_BHLS)[0, 0], np.asarray(out_BLHK)[0, :, 0]


def test_attention_of_three_vectors():
    x = [[1, 0], [0, 1], [1, 1]]
    weights, out = attend(x, x, x)
    expected = [[0.401, 0.198, 0.401], [0.198, 0.401, 0.401], [0.248, 0.248, 0.503]]
    np.testing.assert_allclose(weights, expected, atol=6e-4)
    np.testing.assert_allclose(out, [[0.802, 0.599], [0.599, 0.802], [0.752, 0.752]], atol=6e-4)


def test_attention_of_two_vectors():
    weights, out = attend([[1, 0], [0, 1]], [[1, 1], [1, -1]], [[1, 0], [0, 1]])
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0.804, 0.196]], atol=6e-4)
    np.testing.assert_array_equal(out, weights)


@pytest.mark.parametrize(("m", "n"), [(2, 1), (5, 4), (1, 2)])
def test_rope_products_at_distance_one(m, n):
    """θ = π/6: position 1 at frequency π/6 is an angle of 30 degrees; cos is .866."""
    # Of four dimensions the second pair has frequency base^(-1/2).
    base = (6 / math.pi) ** 2
    cfg = model_config(head_dim=4, **{"position.kind": "rope", "position.rope.base": base})
    encoding, vector = Rope(cfg, True), jnp.array([[[[0.0, 1.0, 0.0, 0.0]]]])
    ids = [jnp.array([[t]]) for t in (m, n)]
    q, k = (encoding.rotate(vector, vector, id_BL, id_BL + 1)[0] for id_BL in ids)
    np.testing.assert_allclose((q * k).sum(), 0.866, atol=1e-4)


def test_masked_softmax():
    weights = reference.masked_softmax(jnp.array([2.0, 5.0, 1.0]), jnp.array([True, False, True]))
    np.testing.assert_allclose(weights, [0.731, 0, 0.269], atol=1e-3)


def permuted(causal):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 6, 8))
    order = rng.permutation(6)
    _, out = attend(q, k, v, causal)
    _, moved = attend(q[order], k[order], v[order], causal)
    return np.abs(moved - out[order]).max()


def test_attention_without_positions_or_mask_is_permutation_equivariant():
    assert permuted(causal=False) < 1e-6
    assert permuted(causal=True) > 0.1


@pytest.mark.parametrize("num_heads", [1, 2, 8, 64])
def test_parameters_of_multi_head_attention(num_heads):
    cfg = model_config(d_model=512, num_heads=num_heads)
    attention = SelfAttention(cfg, cfg.layer_specs(1)[0], jnp.dtype("float32"))
    assert count(attention) == 1_050_624


def block(cfg) -> Block:
    return Block(cfg, cfg.layer_specs(1)[0], jnp.dtype("float32"))


@pytest.mark.parametrize("d", [16, 64, 768])
def test_parameters_of_a_decoder_block(d):
    cfg = model_config(d_model=d, d_ff=0)
    assert count(block(cfg)) == 12 * d**2 + 13 * d


@pytest.mark.parametrize(
    ("d", "heads", "d_ff", "expected"),
    [
        (64, 4, 128, 66_944),
        (64, 4, 256, 99_968),
        (128, 8, 512, 396_544),
        (256, 8, 1024, 1_579_520),
    ],
)
def test_parameters_of_two_layers(d, heads, d_ff, expected):
    """An encoder layer has the same parameters as a decoder-only one."""
    cfg = model_config(d_model=d, num_heads=heads, d_ff=d_ff)
    assert 2 * count(block(cfg)) == expected


def test_parts_of_a_layer():
    layer = abstract_params(build(model_config(d_model=64, d_ff=128, num_layers=1)))["layers"][0]
    attention = layer["attention"]
    assert sum(count(attention[name]) for name in ("query", "key", "value")) == 12_480
    assert count(attention["output"]) == 4_160
    assert count(layer["feed_forward"]["up"]) == 8_320
    assert count(layer["feed_forward"]["down"]) == 8_256
    assert count(layer["attention_norm"]) + count(layer["feed_forward_norm"]) == 256
    assert count(layer) == 33_472


@pytest.mark.parametrize("max_length", [20, 64])
def test_parameters_of_the_agreement_model(max_length):
    """d = 64, 2 layers, Pre-LN, biases, learned, tied; vocabulary + maximum length = 143."""
    sizes = {"d_model": 64, "d_ff": 0, "max_length": max_length, "vocab_size": 143 - max_length}
    assert count(build(model_config(**sizes))) == 109_248


@functools.cache
def gpt2_small():
    sizes = {"num_layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 0}
    return model_config(vocab_size=50257, max_length=1024, **sizes)


def test_parameters_of_gpt2_small():
    params = abstract_params(build(gpt2_small()))
    total = count(params)
    assert total == 124_439_808
    assert round(100 * count(params["embedding"]) / total, 1) == 31.0
    assert round(100 * count(params["layers"]) / total, 1) == 68.3


def test_parameters_of_llama_7b():
    cfg = model_config(
        num_layers=32,
        d_model=4096,
        num_heads=32,
        d_ff=11008,
        vocab_size=32000,
        norm="rmsnorm",
        activation="swiglu",
        attention_bias=False,
        attention_output_bias=False,
        **{"feed_forward_bias": False, "tie_embeddings": False, "position.kind": "rope"},
    )
    assert count(build(cfg)) == 6_738_415_616


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    ("layers", "heads", "head_dim", "expected"), [(6, 8, 64, 12_288), (80, 64, 128, 2_621_440)]
)
def test_bytes_of_the_cache_for_a_token(layers, heads, head_dim, expected, scan_layers):
    cfg = model_config(num_layers=layers, num_heads=heads, d_model=heads * head_dim)
    cfg = (
        cfg
        if not scan_layers
        else model_config(
            num_layers=layers, num_heads=heads, d_model=heads * head_dim, scan_layers=True
        )
    )

    def size(capacity):
        cache = jax.eval_shape(lambda: init_cache(cfg, 1, capacity, jnp.bfloat16))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(cache.layers))

    assert size(11) - size(10) == expected
    assert size(10) == 10 * expected
