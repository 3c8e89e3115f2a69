"""RoPE's frequencies for longer texts: published values, and where the kinds coincide."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.positions import Rope
from jaxformer.nn.positions.scaling import dynamic_stretch, static_frequencies, temperature
from tests.builders import model_config

X_BLHK = jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 2, 64)), jnp.float32)
PLACES_BL = jnp.asarray([[0, 1, 2, 3, 7, 50, 1000, 4095, 65_535]], jnp.int32)


def config(head_dim=64, kind="none", length=2048, keep=1.0, **fields):
    fields = {f"position.rope.scaling.{name}": value for name, value in fields.items()}
    changes = {"position.kind": "rope", "position.rope.keep": keep, "max_length": length}
    changes |= {"position.rope.scaling.kind": kind, "head_dim": head_dim}
    return model_config(**changes, **fields)


def frequencies(head_dim=64, kind="none", length=2048, **fields):
    rope = config(head_dim, kind, length, **fields).position.rope
    return static_frequencies(rope, head_dim, length)


def rotated(cfg, places_BL=PLACES_BL, extent=65_536):
    encoding = Rope(cfg, True)
    return np.asarray(
        jax.jit(encoding.rotate)(X_BLHK, X_BLHK, places_BL, 0 * places_BL + extent)[0]
    )


def base_of(w_M):
    """The base of a schedule whose second frequency is base^(-2/d)."""
    return w_M[1] ** -len(w_M)


def test_p_rope_keeps_the_highest():
    np.testing.assert_allclose(frequencies(8, keep=0.75), [1, 0.1, 0.01, 0])
    assert [np.count_nonzero(frequencies(200, keep=k)) for k in (0.29, 0.07, 0.999)] == [29, 7, 99]


def test_position_interpolation_divides_positions():
    np.testing.assert_allclose(10 * frequencies(8, "linear", factor=4.0), 2.5 * frequencies(8))
    expected = rotated(config(), PLACES_BL // 4)
    actual = rotated(config(kind="linear", factor=4.0), PLACES_BL // 4 * 4)
    np.testing.assert_allclose(actual, expected, atol=3e-4)


@pytest.mark.parametrize(
    ("head_dim", "factor", "base"), [(64, 4.0, 41_829.3659), (128, 8.0, 82_684.6226)]
)
def test_ntk_changes_the_base(head_dim, factor, base):
    w_M = frequencies(head_dim, "ntk", factor=factor)
    np.testing.assert_allclose(base_of(w_M), base, rtol=1e-8)
    np.testing.assert_allclose(w_M[-1], frequencies(head_dim)[-1] / factor, rtol=1e-12)


@pytest.mark.parametrize(("alpha", "base"), [(1.0, 20_452.2287), (2.0, 31_082.2367)])
def test_dynamic_ntk_changes_the_base_with_the_length(alpha, base):
    rope = config(kind="dynamic_ntk", **{"dynamic_ntk.alpha": alpha}).position.rope
    extents_BL = jnp.array([[1, 2048, 4096]])
    stretch_BLM = np.asarray(dynamic_stretch(rope, 64, 2048, extents_BL), np.float64)
    np.testing.assert_array_equal(stretch_BLM[0, :2], 1)
    expected_M = (base / 10_000) ** (-np.arange(32) / 32)
    np.testing.assert_allclose(stretch_BLM[0, 2], expected_M, rtol=1e-6)


def test_dynamic_ntk_turns_each_document_by_its_own_length():
    """As RoPE with the base of that length; documents up to the original length as plain RoPE."""
    cfg, places_BL = config(kind="dynamic_ntk"), jnp.arange(9)[None] * 300
    longer = config()
    np.testing.assert_array_equal(rotated(cfg, places_BL, 2048), rotated(longer, places_BL))
    base = 10_000 * (2401 / 2048) ** (64 / 62)
    with_base = model_config(
        **{"position.kind": "rope", "position.rope.base": base, "head_dim": 64}
    )
    np.testing.assert_allclose(
        rotated(cfg, places_BL, 2401), rotated(with_base, places_BL), atol=2e-3
    )
    assert Rope(longer, True).shift_invariant
    assert not Rope(cfg, True).shift_invariant


def test_dynamic_ntk_at_far_positions():
    """Its frequencies are float32: up to 1e-2 off at 65,535, ten times what static kinds are."""
    x_BLHK = jnp.concatenate([jnp.ones((1, 1, 1, 32)), jnp.zeros((1, 1, 1, 32))], -1)
    places_BL = jnp.array([[65_535]])
    found, _ = Rope(config(kind="dynamic_ntk"), True).rotate(x_BLHK, x_BLHK, places_BL, places_BL)
    base = 10_000 * (65_535 / 2048) ** (64 / 62)
    angles_M = 65_535 * base ** (-np.arange(32) / 32)
    expected = np.r_[np.cos(angles_M), np.sin(angles_M)]
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=1e-2)


YARN_64 = {0: 1, 8: 0.1, 9: 0.070663108, 16: 0.0053846154, 20: 0.00097300851, 31: 3.3338036e-5}
YARN_128 = {32: 0.0056730769, 63: 7.2173874e-6}
YARN_16 = {0: 1, 1: 0.237171, 2: 0.05, 3: 0.00790569, 4: 0.0025}


@pytest.mark.parametrize(
    ("head_dim", "factor", "length", "low", "high", "grown", "expected"),
    [
        (64, 4.0, 2048, 8, 21, 1.138629, YARN_64),
        (128, 16.0, 4096, 20, 46, 1.277259, YARN_128),
        (16, 4.0, 64, 0, 3, 1.138629, YARN_16),
    ],
)
def test_yarn(head_dim, factor, length, low, high, grown, expected):
    """Published frequencies: untouched up to `low`, divided by the factor from `high` on."""
    w_M = frequencies(head_dim, "yarn", length, factor=factor)
    np.testing.assert_allclose(w_M[list(expected)], list(expected.values()), rtol=2e-6)
    ratio_M = frequencies(head_dim) / w_M
    np.testing.assert_allclose(ratio_M[: low + 1], 1)
    np.testing.assert_allclose(ratio_M[high:], factor)
    assert (ratio_M[low + 1 : high] > 1).all()
    assert (ratio_M[low + 1 : high] < factor).all()
    np.testing.assert_array_equal(w_M, frequencies(head_dim, "ntk_by_parts", length, factor=factor))
    rope = config(head_dim, "yarn", length, factor=factor).position.rope
    assert abs(temperature(rope) - grown) < 1e-6


def test_yarn_of_a_short_text_interpolates_all_but_the_first():
    """L below a turn of every pair: the published code would leave all as they are."""
    np.testing.assert_allclose(frequencies(64, "yarn", 1, factor=4.0)[1:], frequencies(64)[1:] / 4)


def test_fewer_turns_than_beta_slow_are_interpolated_by_own_numbers():
    betas = {"beta_fast": 8.0, "beta_slow": 2.0}
    for kind in ("yarn", "ntk_by_parts"):
        w_M = frequencies(kind=kind, factor=4.0, **{f"{kind}.{n}": v for n, v in betas.items()})
        edges = [64 * math.log(2048 / (2 * math.pi * b)) / (2 * math.log(1e4)) for b in (8, 2)]
        changed = np.flatnonzero(w_M < frequencies() * (1 - 1e-9))
        whole = np.flatnonzero(np.isclose(w_M, frequencies() / 4))
        assert (changed[0] - 1, whole[0]) == (math.floor(edges[0]), math.ceil(edges[1]))


def test_the_temperature_multiplies_queries_and_keys():
    """So logits grow by its square; `temperature` sets another."""
    q = rotated(config(kind="yarn", factor=4.0))
    plain = rotated(config(kind="ntk_by_parts", factor=4.0))
    np.testing.assert_allclose(q, plain * (0.1 * math.log(4) + 1), rtol=1e-5, atol=1e-6)
    own = rotated(config(kind="yarn", factor=4.0, **{"yarn.temperature": 1.5}))
    np.testing.assert_allclose(own, plain * 1.5, rtol=1e-5, atol=1e-6)


def test_llama3():
    """Llama 3.1: base 5e5, factor 8, 8,192 tokens; wavelengths below 2,048 stay, above 8,192 / 8.

    Between them the share kept is (8192 / wavelength - 1) / 3.
    """
    changes = {"position.kind": "rope", "head_dim": 128, "position.rope.base": 5e5}
    scaling = {"kind": "llama3", "factor": 8.0, "original_length": 8192}
    changes |= {f"position.rope.scaling.{name}": value for name, value in scaling.items()}
    w_M = static_frequencies(model_config(**changes).position.rope, 128, 8192)
    for m, w in enumerate(w_M):
        plain = 5e5 ** (-m / 64)
        wavelength = 2 * math.pi / plain
        if wavelength < 2048:
            expected = plain
        elif wavelength > 8192:
            expected = plain / 8
        else:
            kept = (8192 / wavelength - 1) / 3
            expected = (1 - kept) * plain / 8 + kept * plain
        assert math.isclose(w, expected, rel_tol=1e-12), m
    assert [m for m in range(64) if 0.125001 < w_M[m] / 5e5 ** (-m / 64) < 0.999999] == [
        *range(29, 35)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "linear"},
        {"kind": "ntk"},
        {"kind": "ntk_by_parts"},
        {"kind": "yarn"},
        {"kind": "llama3"},
        {"keep": 1.0},
    ],
    ids=str,
)
def test_a_factor_of_1_is_rope(fields):
    np.testing.assert_allclose(rotated(config(**fields)), rotated(config()), atol=1e-5)


def test_keeping_nothing_is_no_encoding():
    np.testing.assert_array_equal(rotated(config(keep=0.0)), X_BLHK)


def test_the_original_length_is_max_length_or_set():
    short = config(kind="yarn", factor=4.0, length=512)
    given = config(kind="yarn", factor=4.0, length=2048, original_length=512)
    np.testing.assert_array_equal(rotated(short), rotated(given))
    assert np.abs(rotated(short) - rotated(config(kind="yarn", factor=4.0))).max() > 0.1
