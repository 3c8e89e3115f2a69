"""Buckets of T5: literal ones in both directions, other sizes against the formula."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import parameters
from jaxformer.nn.positions import T5
from jaxformer.nn.positions.t5 import buckets
from tests.builders import model_config

CAUSAL = {0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 20: 17, 24: 19, 32: 21, 48: 24, 64: 26}
CAUSAL |= {90: 29, 113: 31, 128: 31, 1000: 31, -1: 0, -50: 0}  # later keys share bucket 0
# By key minus query.
BOTH = {-8: 8, -1: 1, 0: 0, 1: 17, 7: 23, 8: 24, 20: 26, -20: 10, 100: 31, -1000: 15, 1000: 31}


def config(architecture="decoder", **section):
    section = {f"position.t5.{name}": value for name, value in section.items()}
    return model_config(architecture=architecture, **{"position.kind": "t5"}, **section)


def test_causal_buckets():
    section = config().position.t5
    found = buckets(np.array(list(CAUSAL)), section, causal=True)
    np.testing.assert_array_equal(found, list(CAUSAL.values()))


def test_buckets_of_both_directions():
    section = config().position.t5
    found = buckets(-np.array(list(BOTH)), section, causal=False)
    np.testing.assert_array_equal(found, list(BOTH.values()))


def test_a_whole_quotient_is_not_rounded_down():
    """e = 5, up to 160: 5 · 2^k is the first distance of bucket 5 + k; ln 2 / ln 32 · 5 is .9…9."""
    section = config(num_buckets=10, max_distance=160).position.t5
    first = np.array([5, 10, 20, 40, 80])
    np.testing.assert_array_equal(buckets(first, section, causal=True), [5, 6, 7, 8, 9])
    np.testing.assert_array_equal(buckets(first[1:] - 1, section, causal=True), [5, 6, 7, 8])


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(8, 20), (2, 2), (4, 128), (64, 33)])
def test_other_sizes(num_buckets, max_distance):
    section = config(num_buckets=num_buckets, max_distance=max_distance).position.t5
    single = num_buckets // 2

    def bucket(d):
        if d < single:
            return d
        more = math.log(d / single) / math.log(max_distance / single) * (num_buckets - single)
        return min(single + math.floor(more + 1e-9), num_buckets - 1)

    found = buckets(np.arange(300), section, causal=True)
    np.testing.assert_array_equal(found, [bucket(d) for d in range(300)])


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias(causal):
    """The row of a distance's bucket, whatever the positions; beyond max_distance the last one."""
    cfg = config("decoder" if causal else "encoder")
    table_NH = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    encoding = nnx.merge(nnx.split(T5(cfg, causal))[0], {"buckets": jnp.asarray(table_NH)})
    q_positions_BL, k_positions_BS = np.array([[5, 900], [30, 1]]), np.array([[6, 0, 5], [9, 8, 1]])
    bias_BHLS = encoding.bias(jnp.asarray(q_positions_BL), jnp.asarray(k_positions_BS))
    assert bias_BHLS.dtype == jnp.float32
    away_BLS = q_positions_BL[..., None] - k_positions_BS[:, None]
    rows_BLS = buckets(away_BLS, cfg.position.t5, causal)
    np.testing.assert_array_equal(bias_BHLS, table_NH[rows_BLS].transpose(0, 3, 1, 2))


def test_an_encoder_tells_the_directions_apart():
    encoding = T5(config("encoder"), False)
    start = parameters.fill(encoding, jax.random.key(0))
    assert abs(float(start["buckets"].std()) - 0.25) < 0.05  # N(0, 1 / d_model), 16 here
    at_L = jnp.arange(4)[None]
    bias_HLS = nnx.merge(nnx.split(encoding)[0], start).bias(at_L, at_L)[0]
    assert np.abs(bias_HLS[:, 2, 1] - bias_HLS[:, 1, 2]).min() > 1e-3
    np.testing.assert_array_equal(bias_HLS[:, 1, 0], bias_HLS[:, 3, 2])
