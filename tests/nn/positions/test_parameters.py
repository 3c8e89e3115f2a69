"""What encodings train: names, shapes, weight decay, a place on a mesh, one set for all layers."""

import jax
import pytest
from jax.sharding import AbstractMesh

from jaxformer import sharding
from jaxformer.models import abstract_params, build
from jaxformer.nn import parameters
from jaxformer.nn.positions import ENCODINGS, PositionEncoding
from jaxformer.training.optim import decay_mask
from tests.builders import model_config

# Those that decay have a star.
TRAINED = {
    "learned": {"table*": (16, 16)},
    "learned_alibi": {"log_slopes": (4,)},
    "t5": {"buckets": (32, 4)},
    "kerple_log": {"r1": (4,), "r2": (4,)},
    "kerple_power": {"r1": (4,), "r2": (4,)},
    "fire": {"c": (), "multiplier": (), "hidden/kernel*": (1, 32), "hidden/bias": (32,)}
    | {"heads/kernel*": (32, 4)},
    "shaw": {"keys": (17, 4)},
    "cope": {"vectors": (64, 4)},
}


class Own(PositionEncoding):
    """Has a parameter that no table of ours knows."""

    trained = True

    def __init__(self, cfg, causal):
        self.mine = parameters.declare((2, 3, 5), parameters.zeros)


def params(kind, **changes):
    return abstract_params(build(model_config(**{"position.kind": kind}, **changes)))


def position(tree):
    """Leaves by path below position/."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    flat = {sharding.path_of(keys): leaf for keys, leaf in flat}
    return {path.split("position/")[1]: x for path, x in flat.items() if "position/" in path}


@pytest.mark.parametrize("kind", ENCODINGS)
def test_names_shapes_and_decay(kind):
    found, decayed = position(params(kind)), position(decay_mask(params(kind)))
    expected = {f"{kind}/{name}": shape for name, shape in TRAINED.get(kind, {}).items()}
    assert {path + "*" * decayed[path]: x.shape for path, x in found.items()} == expected
    assert ENCODINGS[kind].trained == bool(expected)


def test_encoder_and_decoder_have_a_set_each():
    both = params("kerple_log", architecture="encoder_decoder", num_layers=3)
    for trunk in ("encoder", "decoder"):
        assert set(both[trunk]["position"]["kerple_log"]) == {"r1", "r2"}


@pytest.mark.parametrize("kind", [*TRAINED, f"{__name__}:Own"])
@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_all_but_tables_are_whole_on_every_device(kind, architecture):
    tree = params(kind, architecture=architecture)
    found = position(sharding.params_shardings(AbstractMesh((2, 4, 1, 1, 1), sharding.AXES), tree))
    assert found
    for path, where in found.items():
        assert any(where.spec) == path.endswith("table"), path
