"""The syntax of --positions, and a tiny model under each scheme."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.evaluation.schemes import configure, make_variant, parse_schemes, trained_length
from jaxformer.nn.cache import init_cache
from tests import builders

TRAINED_LENGTH, LONG = 8, 20


def scheme(text):
    (found,) = parse_schemes(text)
    return found


@functools.cache
def run_config(kind="rope", **changes) -> RunConfig:
    """A text run of contexts of TRAINED_LENGTH tokens."""
    config = base.get_config()
    changes = {"position.kind": kind, "max_length": 16, "initializer": "bert"} | changes
    builders.change(config.model, builders.TINY | changes)
    config.data.update(source="text", path="text.txt", length=TRAINED_LENGTH)
    config.data.tokenizer.kind = "char"
    return RunConfig.from_config_dict(config)


@functools.cache
def trained(kind="rope", **changes) -> nnx.Module:
    return builders.make_model(run_config(kind, **changes).model)


@functools.partial(jax.jit, static_argnames="graphdef")
def forward(graphdef, params, tokens_BL, positions_BL):
    return nnx.merge(graphdef, params)(tokens_BL, positions=positions_BL).logits


TOKENS = np.random.default_rng(0).integers(0, 40, (2, LONG)).astype(np.int32)


def logits(model, length=LONG, stride=1):
    """float32[2, length, V] of the same tokens, at positions `stride` apart."""
    graphdef, params = nnx.split(model)
    positions_BL = np.broadcast_to(stride * np.arange(length, dtype=np.int32), (2, length))
    return np.asarray(forward(graphdef, params, TOKENS[:, :length], positions_BL))


def under(text, kind="rope", **changes):
    return make_variant(scheme(text), trained(kind, **changes), run_config(kind, **changes))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("trained", [("trained", 0)]),
        ("pi:4", [("pi", 4)]),
        ("ntk:1.5", [("ntk", 1.5)]),
        ("parts:2", [("parts", 2)]),
        ("yarn:4", [("yarn", 4)]),
        ("dyn_ntk", [("dyn_ntk", 0)]),
        ("dyn_ntk:2", [("dyn_ntk", 2)]),
        ("llama3:8", [("llama3", 8)]),
        ("base:1e6", [("base", 1e6)]),
        ("none", [("none", 0)]),
        ("window:512", [("window", 512)]),
        ("logn", [("logn", 0)]),
        (" yarn:4 + logn ", [("yarn", 4), ("logn", 0)]),
        ("base:1e6+pi:2+window:5", [("base", 1e6), ("pi", 2), ("window", 5)]),
    ],
)
def test_one_scheme(text, parts):
    assert scheme(text).name == text.strip()
    assert scheme(text).parts == tuple(parts)


def test_several_keep_their_order_and_lose_repeats():
    names = [found.name for found in parse_schemes("yarn:4, trained,yarn:4.0,pi:2,trained")]
    assert names == ["yarn:4", "trained", "pi:2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "choose from trained, pi"),
        ("yarm:4", "has 'yarm:4', did you mean yarn"),
        ("pi:4,rope", "has 'rope', .*choose from"),
        ("pi", r"has 'pi', write pi:N, a factor of at least 1"),
        ("yarn:0.5", "a factor of at least 1"),
        ("yarn:nan", "a factor of at least 1"),
        ("ntk:x", "a factor of at least 1"),
        ("base:inf", "a base of at least 1"),
        ("window:0", "a number of tokens of at least 1"),
        ("window:2.5", "a number of tokens"),
        ("window", "a number of tokens"),
        ("window:abc", "a number of tokens"),
        ("window:inf", "a number of tokens"),
        ("window:nan", "a number of tokens"),
        ("logn:3", "logn takes no number"),
        ("trained:1", "trained takes no number"),
        ("pi:2+yarn:4", "pi and yarn contradict each other"),
        ("none+base:7", "none and base contradict each other"),
        ("trained+logn", "trained and logn contradict each other"),
        ("logn+logn", "logn and logn contradict each other"),
        ("yarn:4+", "choose from"),
    ],
)
def test_everything_else_is_refused(text, message):
    with pytest.raises(UserError, match=f"^positions: .*{message}"):
        parse_schemes(text)


@pytest.mark.parametrize(
    ("text", "kind", "changes", "message"),
    [
        ("yarn:4", "learned", {}, "has 'yarn:4', but the positions of the model are learned"),
        ("yarn:4", "alibi", {}, "positions of the model are alibi"),
        ("pi:2", "none", {}, "positions of the model are none"),
        ("base:1e6", "sinusoidal", {}, "positions of the model are sinusoidal"),
        ("none", "learned", {}, r"has 'none', which leaves \S+table out, a trained parameter"),
        ("logn+none", "t5", {}, r"has 'logn\+none', which leaves \S+ out, a trained parameter"),
        ("pi:2", "rope", {"position.rope.scaling.kind": "yarn"}, "trained with rope.scaling.kind"),
        ("logn", "rope", {"position.logn_length": 8}, "trained with position.logn_length = 8"),
        ("window:3", "rope", {"window": 3}, "all layers have a window of at most 3"),
        ("ntk:2", "rope", {"position.rope.fraction": 0.5}, "needs 4 or more"),
    ],
)
def test_a_scheme_that_contradicts_the_model_is_refused_by_name(text, kind, changes, message):
    with pytest.raises(UserError, match=f"^positions: .*{message}"):
        under(text, kind, **changes)


def test_the_trained_length():
    assert trained_length(run_config()) == TRAINED_LENGTH
    config = base.get_config()
    config.data.agreement.max_modifiers = 2
    assert trained_length(RunConfig.from_config_dict(config)) == 15  # 8 + 4 · 2 tokens, all but one
    pairs = dataclasses.replace(run_config().data, target_length=12)
    assert trained_length(dataclasses.replace(run_config(), data=pairs)) == 12


def test_layer_patterns_keep_their_shape():
    cfg = run_config(layer_pattern="rope:window=3, none").model
    assert configure(scheme("none"), cfg, 8).layer_pattern == "none:window=3, none"
    assert configure(scheme("window:2"), cfg, 8).layer_pattern == "rope:window=2, none:window=2"
    assert configure(scheme("window:5"), cfg, 8).layer_pattern == "rope:window=3, none:window=5"
    assert configure(scheme("window:5"), run_config().model, 8).window == 5


@pytest.mark.parametrize(
    "text", ["pi:1", "ntk:1", "parts:1", "yarn:1", "llama3:1", "base:10000", "window:20"]
)
def test_schemes_of_factor_one_change_nothing(text):
    np.testing.assert_allclose(logits(under(text).model), logits(trained()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", ["dyn_ntk", "dyn_ntk:2", "logn", "dyn_ntk+logn"])
def test_schemes_by_length_start_after_the_trained_one(text):
    model, plain = under(text).model, trained()
    within = logits(model, TRAINED_LENGTH), logits(plain, TRAINED_LENGTH)
    np.testing.assert_allclose(*within, rtol=1e-6, atol=1e-6)
    assert np.abs(logits(model) - logits(plain)).max() > 1e-3


@pytest.mark.parametrize(
    ("text", "changes", "stride"),
    [
        # Heads of 4 dimensions: base' = base · s^(4 / 2).
        ("ntk:3", {"position.rope.base": 90_000.0}, 1),
        ("dyn_ntk", {"position.rope.base": 62_500.0}, 1),  # 20 tokens of 8: s = 2.5
        ("dyn_ntk:2", {"position.rope.base": 160_000.0}, 1),  # 2 · 2.5 - 1 = 4
        ("base:500", {"position.rope.base": 500.0}, 1),
        ("none", {"position.kind": "none"}, 1),
        ("window:5", {"window": 5}, 1),
        ("base:500+window:5", {"position.rope.base": 500.0, "window": 5}, 1),
    ],
)
def test_a_scheme_is_the_trained_parameters_in_another_model(text, changes, stride):
    """Equal to a model built with the closed form, to which the scheme's name says nothing."""
    other = builders.make_model(run_config(**changes).model)  # parameters come from a seed
    found = logits(under(text).model)
    np.testing.assert_allclose(found, logits(other), rtol=1e-5, atol=1e-5)
    assert np.abs(found - logits(trained())).max() > 1e-3


def test_interpolated_positions_are_divided():
    found = logits(under("pi:3").model, stride=3)
    np.testing.assert_allclose(found, logits(trained()), rtol=1e-5, atol=1e-5)


def test_scaling_is_told_the_trained_length():
    for text, kind in (("parts:4", "ntk_by_parts"), ("yarn:4", "yarn"), ("llama3:4", "llama3")):
        scaling = under(text).config.model.position.rope.scaling
        assert (scaling.kind, scaling.factor) == (kind, 4.0)
        assert scaling.original_length == TRAINED_LENGTH
    assert under("logn").config.model.position.logn_length == TRAINED_LENGTH


CACHED = (
    *("trained", "pi:4", "ntk:4", "parts:4", "yarn:4", "dyn_ntk", "llama3:4"),
    *("base:1e6", "none", "window:5", "logn", "yarn:4+logn", "dyn_ntk+window:9"),
)


@pytest.mark.parametrize("text", CACHED)
def test_cached_decoding_equals_the_full_forward_pass(text):
    """In steps of several tokens, which share one compilation with the first."""
    variant = under(text, num_layers=1)
    graphdef, params = nnx.split(variant.model)

    @jax.jit
    def step(params, tokens_BL, cache):
        out = nnx.merge(graphdef, params)(tokens_BL, cache=cache)
        return out.logits, out.cache

    # A call that may reach LONG tokens: what dynamic NTK goes by, from the first token on.
    cache = init_cache(variant.config.model, 2, LONG, jnp.float32, jnp.full(2, LONG))
    parts = []
    for tokens_BL in np.split(TOKENS, LONG // 4, axis=1):
        part_BLV, cache = step(params, tokens_BL, cache)
        parts.append(part_BLV)
    found = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(found, logits(variant.model), rtol=1e-4, atol=1e-5)
