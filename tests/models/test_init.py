"""Parameters: names, shapes, distributions, and initialisation keyed by path."""

import functools
import itertools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.models import build, init
from tests.builders import GRID, leaves, model_config

KEY = jax.random.key(5)


@functools.cache
def initial(**changes):
    return leaves(init(model_config(**changes), KEY))


def shapes(**changes):
    return {name: leaf.shape for name, leaf in initial(**changes).items()}


def layer(i, *, norms=("attention_norm", "feed_forward_norm"), kv=16, gated=False):
    names = {"attention/query": (16, 16), "attention/key": (16, kv), "attention/value": (16, kv)}
    names |= {"attention/output": (16, 16), "feed_forward/up": (16, 32)}
    names |= {"feed_forward/down": (32, 16)} | ({"feed_forward/gate": (16, 32)} if gated else {})
    out = {}
    for name, shape in names.items():
        out |= {f"layers/{i}/{name}/kernel": shape, f"layers/{i}/{name}/bias": shape[1:]}
    for norm in norms:
        out |= {f"layers/{i}/{norm}/scale": (16,), f"layers/{i}/{norm}/bias": (16,)}
    return out


ENDS = {"embedding/table": (40, 16), "final_norm/scale": (16,), "final_norm/bias": (16,)}


def test_shapes_of_the_default():
    expected = ENDS | {"position/learned/table": (16, 16)} | layer(0) | layer(1)
    assert shapes() == expected


def test_shapes_of_a_modern_decoder():
    changes = {"norm": "rmsnorm", "norm_placement": "sandwich", "activation": "swiglu"}
    changes |= {"num_kv_heads": 1, "attention_bias": False, "feed_forward_bias": False}
    changes |= {"attention_output_bias": False}
    changes |= {"tie_embeddings": False, "head_bias": True, "position.kind": "rope"}
    norms = [
        f"{part}_{kind}" for part in ("attention", "feed_forward") for kind in ("norm", "post_norm")
    ]
    expected = ENDS | {"head/kernel": (16, 40), "head/bias": (40,)}
    for i in range(2):
        expected |= layer(i, norms=norms, kv=4, gated=True)
    expected = {n: s for n, s in expected.items() if n == "head/bias" or not n.endswith("bias")}
    assert shapes(**changes) == expected


def test_shapes_of_scanned_layers():
    expected = ENDS | {"position/learned/table": (16, 16)}
    expected |= {n.replace("/0/", "/"): (2, *shape) for n, shape in layer(0).items()}
    assert shapes(scan_layers=True) == expected


def test_shapes_without_norms():
    assert shapes(norm_placement="none", **{"position.kind": "none"}) == (
        {"embedding/table": (40, 16)} | layer(0, norms=()) | layer(1, norms=())
    )


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "none"])
@pytest.mark.parametrize("final", ["auto", "true", "false"])
def test_where_a_final_norm_stands(placement, final):
    expected = placement in ("pre", "sandwich") if final == "auto" else final == "true"
    names = jax.tree.leaves_with_path(
        build(model_config(norm_placement=placement, final_norm=final))
    )
    assert any("final_norm" in jax.tree_util.keystr(path) for path, _ in names) == expected


OPTIONS = [change for axis in GRID.values() for change in axis.values() if change]
OPTIONS += [{"num_layers": 3, "initializer": "xavier"}, {"max_length": 9}, {"vocab_size": 41}]


@pytest.mark.parametrize("change", OPTIONS, ids=str)
@pytest.mark.parametrize("initializer", ["gpt2", "xavier"])
def test_an_option_leaves_every_other_leaf_as_it_was(change, initializer):
    if initializer == "xavier" and "initializer" in change:
        pytest.skip("the same twice")
    before = initial(initializer=change.get("initializer", initializer), num_layers=2)
    after = initial(**({"initializer": initializer} | change))
    if change.get("scan_layers"):
        after = {
            name.replace("layers", f"layers/{i}") if "layers" in name else name: array
            for name, stacked in after.items()
            for i, array in enumerate(stacked if "layers" in name else [stacked])
        }
        assert after.keys() == before.keys()
    shared = [
        name for name in before.keys() & after.keys() if before[name].shape == after[name].shape
    ]
    assert len(shared) >= 5
    for name in shared:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)


@pytest.mark.parametrize(("initializer", "scan_layers"), [("gpt2", True), ("xavier", False)])
def test_init_under_jit_equals_eager_init(initializer, scan_layers):
    cfg = model_config(initializer=initializer, scan_layers=scan_layers)
    eager, jitted = leaves(init(cfg, KEY)), leaves(jax.jit(lambda key: init(cfg, key))(KEY))
    assert eager.keys() == jitted.keys()
    for name, leaf in eager.items():
        np.testing.assert_array_equal(jitted[name], leaf, err_msg=name)


def test_leaves_and_seeds_draw_differently():
    drawn = {n: x for n, x in initial().items() if not n.endswith(("bias", "scale"))}
    assert len(drawn) == 14
    for (a, x), (b, y) in itertools.combinations(drawn.items(), 2):
        n = min(x.size, y.size)
        spread = [z.ravel()[:n] / z.std() for z in (x, y)]
        assert np.abs(spread[0] - spread[1]).max() > 1e-2, (a, b)
    other = leaves(init(model_config(), jax.random.key(6)))
    assert all((other[name] != leaf).any() for name, leaf in drawn.items())


WIDE = {"d_model": 128, "vocab_size": 100, "max_length": 100, "d_ff": 256, "tie_embeddings": False}


def spreads(initializer):
    found = initial(initializer=initializer, num_layers=8, scan_layers=True, **WIDE)
    for name, leaf in found.items():
        assert leaf.dtype == np.float32
        if name.endswith("bias"):
            assert not leaf.any()
        elif name.endswith("scale"):
            assert (leaf == 1).all()
    return {n: x for n, x in found.items() if not n.endswith(("bias", "scale"))}


def test_gpt2_spreads():
    """N(0, .02²); kernels that write to the residual stream are divided by sqrt(2 · 8) = 4."""
    for name, leaf in spreads("gpt2").items():
        small = name.endswith(("attention/output/kernel", "feed_forward/down/kernel"))
        expected = 0.005 if small else 0.02
        assert abs(leaf.std() / expected - 1) < 0.03, name
        assert abs(leaf.mean()) < 0.03 * expected, name
        assert np.abs(leaf).max() > 3 * expected, name  # a normal draw, not a truncated one


def test_xavier_spreads():
    """U(-a, a), a = sqrt(6 / (in + out)); tables N(0, 1 / d)."""
    for name, leaf in spreads("xavier").items():
        if name.endswith("table"):
            assert abs(leaf.std() / 128**-0.5 - 1) < 0.03, name
            continue
        bound = (6 / sum(leaf.shape[-2:])) ** 0.5
        assert np.abs(leaf).max() <= bound, name
        assert np.abs(leaf).max() > 0.99 * bound, name
        assert abs(leaf.std() / (bound / 3**0.5) - 1) < 0.03, name


def test_building_costs_no_memory():
    cfg = model_config(d_model=16384, num_heads=64, d_ff=65536, num_layers=100, vocab_size=10**6)
    found = jax.tree.leaves(build(cfg))
    assert {type(leaf) for leaf in found} == {jax.ShapeDtypeStruct}


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(UserError, match=r"model\.vocab_size"):
        build(model_config(vocab_size=0))
