"""FIRE: worked values, and the encodings that it contains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.nn import parameters
from jaxformer.nn.positions import Alibi, Fire, KerpleLog
from tests.builders import model_config

PLACES = jnp.arange(24)[None]


def fire(causal=True, *, length=8.0, c=1.0, multiplier=1.0, w1=(1.0,), b1=(0.0,), w2=((1.0,),)):
    """With these numbers; w2 has a row for each hidden unit."""
    changes = {"position.fire.init_length": length, "position.fire.width": len(w1)}
    heads = len(w2[0])
    cfg = model_config(num_heads=heads, d_model=4 * heads, **{"position.kind": "fire"}, **changes)
    values = {"c": jnp.float32(c), "multiplier": jnp.float32(multiplier)}
    values |= {"hidden": {"kernel": jnp.array([w1]), "bias": jnp.array(b1)}}
    values |= {"heads": {"kernel": jnp.array(w2)}}
    return nnx.merge(nnx.split(Fire(cfg, causal))[0], values)


WORKED = {(3, 1): 0.5, (7, 0): 0.946395, (8, 0): 1.0, (20, 5): 0.910681, (20, 19): 0.22767}


@pytest.mark.parametrize(("multiplier", "length"), [(1.0, 8.0), (-2.0, 4.0)])
def test_what_the_network_is_given(multiplier, length):
    """c = 1 and a threshold of 8, whatever their signs."""
    for c in (1.0, -1.0):
        encoding = fire(length=length, multiplier=multiplier, c=c)
        given_LS = encoding.interpolated(PLACES, PLACES)[0]
        for place, expected in WORKED.items():
            assert abs(given_LS[place] - expected) < 2e-6, place


def test_the_bias():
    encoding = fire(w1=(1.0, -1.0), b1=(0.0, 0.5), w2=((2.0, 1.0), (3.0, -1.0)))
    bias_BHLS = encoding.bias(PLACES, PLACES)
    assert bias_BHLS.shape == (1, 2, 24, 24)
    assert bias_BHLS.dtype == jnp.float32
    assert abs(bias_BHLS[0, 0, 20, 5] - 1.821362) < 5e-6
    assert abs(bias_BHLS[0, 1, 20, 5] - 0.910681) < 5e-6
    assert abs(bias_BHLS[0, 0, 4, 4] - 1.5) < 1e-6  # distance 0: 3 relu(.5)


def test_an_encoder_is_symmetric_and_within_1():
    given_LS = np.asarray(fire(causal=False).interpolated(PLACES, PLACES)[0])
    np.testing.assert_array_equal(given_LS, given_LS.T)
    assert given_LS.max() <= 1
    causal_LS = np.asarray(fire().interpolated(PLACES, PLACES)[0])  # later keys: a prefix's
    np.testing.assert_array_equal(given_LS, causal_LS)


def test_kerples_logarithm_is_a_case():
    """Below the threshold T: f(x) = -r1 ln(1 + r2 T) x, c = r2."""
    r1, r2, length = 0.7, 0.4, 32.0
    encoding = fire(length=length, c=r2, w2=((-r1 * np.log1p(r2 * length),),))
    graphdef, _ = nnx.split(KerpleLog(model_config(num_heads=1), True))
    kerple = nnx.merge(graphdef, {"r1": jnp.array([r1]), "r2": jnp.array([r2])})
    np.testing.assert_allclose(
        encoding.bias(PLACES, PLACES), kerple.bias(PLACES, PLACES), atol=1e-5
    )


def test_alibi_is_the_limit_of_small_c():
    """f(x) = -s T x, and ln(1 + c x) is c x."""
    encoding = fire(length=1024.0, c=1e-5, w2=((-1024.0 * 2.0**-8,),))
    bias_BHLS = Alibi(model_config(num_heads=1), True).bias(PLACES, PLACES)
    np.testing.assert_allclose(encoding.bias(PLACES, PLACES), bias_BHLS, rtol=6e-3)


def test_where_the_numbers_start():
    """As torch draws them: U(-1, 1) for one input, U(±32^-.5) for 32."""
    cfg = model_config(num_heads=64, d_model=128, **{"position.fire.width": 64})
    start = parameters.fill(Fire(cfg, True), jax.random.key(0))
    assert start["c"] == np.float32(0.1)
    assert start["multiplier"] == 1
    for leaf, bound in ((start["hidden"]["kernel"], 1), (start["hidden"]["bias"], 1)):
        assert 0.9 * bound < np.abs(leaf).max() < bound
    assert 0.99 / 8 < np.abs(start["heads"]["kernel"]).max() < 1 / 8
    assert set(start["heads"]) == {"kernel"}


def test_gradients_reach_all_but_the_masked():
    graphdef, _ = nnx.split(fire(w1=(1.0, -1.0), b1=(0.0, 0.5), w2=((2.0,), (3.0,))))
    values = nnx.to_pure_dict(nnx.state(fire(w1=(1.0, -1.0), b1=(0.1, 0.5), w2=((2.0,), (3.0,)))))

    def total(values):
        return (nnx.merge(graphdef, values).bias(PLACES, PLACES) ** 2).sum()

    for gradient in jax.tree.leaves(jax.jit(jax.grad(total))(values)):
        assert np.isfinite(gradient).all()
        assert np.all(gradient != 0)
