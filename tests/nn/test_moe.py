"""The layer with experts against NumPy, against the dense one, and what it may depend on."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.models import init
from jaxformer.nn import experts as experts_module
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.moe import MixtureOfExperts
from tests import oracle
from tests.builders import graphdef, leaves, model_config, random_params

TOKENS = np.random.default_rng(0).integers(0, 40, (4, 8)).astype(np.int32)
SEGMENTS = np.array([[1] * 8, [1] * 5 + [0] * 3, [0, 0] + [1] * 6, [1, 1, 1, 2, 2, 2, 2, 0]])
MOE = {"moe.num_experts": 4}
SWITCH = MOE | {"moe.top_k": 1, "moe.normalize_top_k": False, "moe.capacity_factor": 1.0}
KEY = jax.random.key(7)


@functools.partial(jax.jit, static_argnums=0)
def run(definition, params, tokens, segments, key):
    return nnx.merge(definition, params)(tokens, segments, key=key)


def logits(cfg, params, tokens=TOKENS, segments=SEGMENTS, key=None):
    return np.asarray(run(graphdef(cfg), params, tokens, segments, key).logits)


def with_equal_experts(params, count):
    """A dense model's parameters with `count` copies of each feed-forward layer."""
    params = jax.tree.map(lambda x: x, params)
    for number, layer in params["layers"].items():
        dense = layer["feed_forward"]
        copies = jax.tree.map(lambda x: jnp.stack([x] * count), dense)
        router = np.random.default_rng(number).normal(size=(16, count))
        kernel = jnp.asarray(router, jnp.float32)
        layer["feed_forward"] = {"experts": copies, "router": {"kernel": kernel}}
    return params


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("factor", [0.0, 4.0])
def test_equal_experts_give_the_dense_output(activation, factor):
    """Dropout on: a token's mask is the same for all its experts. 4.0: a place for every token."""
    changes = {"activation": activation, "dropout.feed_forward": 0.3}
    dense, mixed = (
        model_config(**(changes | more)) for more in ({}, MOE | {"moe.capacity_factor": factor})
    )
    params = random_params(dense)
    same = with_equal_experts(params, 4)
    for key in (None, KEY):
        expected, found = logits(dense, params, key=key), logits(mixed, same, key=key)
        scale = np.abs(expected[SEGMENTS > 0]).max()
        np.testing.assert_allclose(
            found[SEGMENTS > 0], expected[SEGMENTS > 0], rtol=0, atol=1e-6 * scale
        )


def by_numpy(cfg, params, x_BLD, segments, size):
    """float64, row by row: padding is left out before, so it takes no place."""
    out = np.zeros(x_BLD.shape)
    for b, row in enumerate(segments):
        real = row > 0
        out[b, real] = oracle.mixture(cfg, params, np.float64(x_BLD[b, real]), size)
    return out


class View:
    """The part of a Context that the layer reads."""

    def __init__(self, segments, key=None):
        self.visibility, self.key = type("V", (), {"q_segment_ids_BL": segments}), key


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        (MOE | {"activation": "geglu", "moe.shared_d_ff": 12}, 0),
        (MOE | {"feed_forward_bias": False, "d_ff": 0, "moe.d_ff": 24, "moe.top_k": 3}, 0),
        (MOE | {"activation": "geglu", "moe.capacity_factor": 0.7}, 3),
        (SWITCH | {"moe.shared_d_ff": 12}, 2),
    ],
    ids=["dropless", "plain", "capacity", "switch"],
)
def test_the_layer_in_numpy(changes, size):
    cfg = model_config(**changes)
    layer = MixtureOfExperts(cfg, jnp.dtype("float32"))
    params = random_params(cfg)["layers"][0]["feed_forward"]
    x = np.random.default_rng(1).normal(size=(4, 8, 16)).astype(np.float32)
    key = RowKey.of(KEY, 4) if size else None
    definition, _ = nnx.split(layer)
    apply = jax.jit(lambda p: nnx.merge(definition, p)(x, View(jnp.asarray(SEGMENTS), key), 0))
    found, told = apply(params)
    expected = by_numpy(cfg, params, x, SEGMENTS, size)
    np.testing.assert_allclose(found[SEGMENTS > 0], expected[SEGMENTS > 0], rtol=0, atol=2e-5)
    assert (told.dropped > 0) == (size > 0)
    assert told.load_E.sum() == (SEGMENTS > 0).sum() * cfg.moe.top_k


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_both_ways_of_dropless_agree_forward_and_backward(activation):
    """The experts 2 and 3 of 5 on a device; tokens for others, and padding, give it nothing."""
    cfg = model_config(**(MOE | {"moe.num_experts": 5, "activation": activation}))
    experts = nnx.merge(*nnx.split(experts_module.Experts(cfg, jnp.dtype("float32"))))
    rng = np.random.default_rng(3)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    shapes = {"up": (2, 16, 32), "gate": (2, 16, 32), "down": (2, 32, 16)}
    weights = {name: draw(*shape) / 4 for name, shape in shapes.items()}  # or sin y is rounding
    biases = {"up": draw(2, 32), "gate": draw(2, 32)}
    if activation == "gelu":
        del weights["gate"], biases["gate"]
    chosen = np.array([[[0, 2], [2, 3], [3, 1], [5, 5]], [[2, 4], [4, 0], [3, 2], [2, 3]]])
    ids, mask = (
        jnp.asarray(chosen, jnp.int32),
        jnp.asarray(rng.random((2, 4, 32)) < 0.8, jnp.float32),
    )

    def loss(run, x, shares, weights, biases):
        y = run(jnp.int32(2), [x, ids, shares, mask], weights, biases)
        return jnp.sin(y).sum(), y

    results = []
    for run in (experts.all_products, experts.grouped_products):
        graded = jax.value_and_grad(functools.partial(loss, run), (0, 1, 2, 3), has_aux=True)
        results.append(jax.jit(graded)(XS, SHARES, weights, biases))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-4), *results)
    (_, y), gradients = results[0]
    assert not y[0, 3].any()
    assert not gradients[0][0, 3].any()
    assert y[0, 0].any()


XS = jnp.asarray(np.random.default_rng(4).normal(size=(2, 4, 16)), jnp.float32)
SHARES = jnp.asarray(np.random.default_rng(5).random((2, 4, 2)), jnp.float32)


@pytest.mark.parametrize("key", [None, KEY], ids=["evaluation", "training"])
def test_no_token_sees_a_later_one(key):
    """Capacity too: what a token is given depends on earlier ones of its row alone."""
    cfg = model_config(**(SWITCH | {"moe.capacity_factor": 0.5}))
    params = random_params(cfg)
    other = TOKENS.copy()
    other[:, 5:] = (other[:, 5:] + 1) % 40
    ones = np.ones_like(TOKENS)
    before, after = (logits(cfg, params, t, ones, key) for t in (TOKENS, other))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any()


def test_capacity_counts_within_a_row_and_only_in_training():
    """A row's output does not depend on the batch; without a key nothing is dropped."""
    cfg = model_config(**(SWITCH | {"moe.capacity_factor": 0.5, "moe.jitter": 0.3}))
    params = random_params(cfg)
    whole = logits(cfg, params, key=RowKey(KEY, jnp.arange(4)))
    for rows in ([2], [3, 0]):
        key = RowKey(KEY, jnp.asarray(rows))
        part = logits(cfg, params, TOKENS[rows], SEGMENTS[rows], key)
        np.testing.assert_allclose(part, whole[rows], rtol=0, atol=1e-5)
    free = dataclasses.replace(cfg.moe, capacity_factor=0.0, jitter=0.0)
    dropless = dataclasses.replace(cfg, moe=free)
    np.testing.assert_array_equal(logits(cfg, params), logits(dropless, params))
    assert np.abs(logits(cfg, params) - whole).max() > 0.1


def test_padding_takes_no_place_and_is_not_counted():
    """Two of eight places of a row are padding, in front or behind."""
    cfg = model_config(**(SWITCH | {"moe.capacity_factor": 0.5, "position.kind": "none"}))
    params = random_params(cfg)
    front, behind = np.zeros((2, 1, 8), np.int32)
    front[:, 2:], behind[:, :6] = TOKENS[0, :6], TOKENS[0, :6]
    segments = [np.array([[0, 0] + [1] * 6]), np.array([[1] * 6 + [0, 0]])]
    found = [
        run(graphdef(cfg), params, tokens, ids, KEY)
        for tokens, ids in zip((front, behind), segments, strict=True)
    ]
    np.testing.assert_allclose(found[0].logits[:, 2:], found[1].logits[:, :6], atol=1e-5, rtol=0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), *(out.routing for out in found)
    )
    assert found[0].routing.tokens.tolist() == [6, 6]


def test_jitter_moves_only_the_router():
    """With equal experts and weights that sum to 1 it changes nothing; else it does."""
    dense = model_config()
    cfg = model_config(**(MOE | {"moe.jitter": 0.5}))
    same = with_equal_experts(random_params(dense), 4)
    np.testing.assert_allclose(
        logits(cfg, same, key=KEY)[SEGMENTS > 0],
        logits(dense, random_params(dense))[SEGMENTS > 0],
        rtol=0,
        atol=1e-5,
    )
    params = random_params(cfg)
    moved = logits(cfg, params, key=KEY)
    assert np.abs(moved - logits(cfg, params)).max() > 1e-3
    other = logits(cfg, params, key=jax.random.key(8))
    assert np.abs(moved - other).max() > 1e-3


def test_every_expert_has_a_draw_of_its_own_and_the_fan_in_of_one():
    cfg = model_config(**(MOE | {"initializer": "lecun", "d_model": 64, "num_heads": 4}))
    found = leaves(init(cfg, jax.random.key(0)))
    kernel = found["layers/0/feed_forward/experts/up/kernel"]
    assert kernel.shape == (4, 64, 32)
    np.testing.assert_allclose(kernel.std((1, 2)), 64**-0.5, rtol=0.1)
    assert len({x.tobytes() for x in kernel}) == 4
    scanned = dataclasses.replace(cfg, scan_layers=True)
    stacked = leaves(init(scanned, jax.random.key(0)))["layers/feed_forward/experts/up/kernel"]
    np.testing.assert_array_equal(stacked[0], kernel)


def test_only_every_nth_layer_has_experts():
    cfg = model_config(**(MOE | {"moe.every": 2, "num_layers": 4, "moe.d_ff": 8}))
    found = leaves(init(cfg, jax.random.key(0)))
    mixed = sorted({int(p.split("/")[1]) for p in found if "/experts/" in p})
    dense = sorted({int(p.split("/")[1]) for p in found if "/feed_forward/up/" in p})
    assert (mixed, dense) == ([1, 3], [0, 2])
    assert found["layers/1/feed_forward/experts/up/kernel"].shape == (4, 16, 8)
    out = run(graphdef(cfg), random_params(cfg), TOKENS, SEGMENTS, None)
    assert out.routing.load_E.shape == (2, 4)
