"""Fields of position encodings: names that agree, contradictions that are refused by field."""

import pytest

from jaxformer.config.position import (
    CONTENT_POSITIONS,
    INPUT_POSITIONS,
    LAYER_POSITIONS,
    TABLE_POSITIONS,
)
from jaxformer.errors import UserError
from jaxformer.nn.kernels.rule import overrides
from jaxformer.nn.positions import ENCODINGS, PositionEncoding
from tests.builders import model_config


def rope(kind="none", **fields):
    scaling = {f"position.rope.scaling.{name}": value for name, value in fields.items()}
    return {"position.kind": "rope", "position.rope.scaling.kind": kind} | scaling


def t5(**fields):
    return {"position.kind": "t5"} | {f"position.t5.{n}": value for n, value in fields.items()}


def fire(**fields):
    return {"position.kind": "fire"} | {f"position.fire.{n}": v for n, v in fields.items()}


FLOATS = {"position.kind": "rope", "position.source.kind": "random_float"}
ENCODER = {"architecture": "encoder"}
# The last change is the one at fault, unless a path is given; then words of what is wrong.
REFUSED = [
    ({"position.logn_length": -1}, "0 or more"),
    ({"position.logn_length": 1}, "2 or more"),
    ({"layer_pattern": "rope", "position.kind": "t5"}, "no layer of model.layer_pattern has"),
    (rope() | {"position.rope.keep": 1.1}, "from 0 to 1"),
    (rope() | {"position.rope.keep": -0.1}, "from 0 to 1"),
    (rope("linear", factor=0.5), "1 or more"),
    (rope("linear", factor=-4.0), "1 or more"),
    (rope("none", factor=4.0), "never read"),
    (rope("dynamic_ntk", factor=4.0), "never read"),
    (rope("linear", original_length=64), "never read"),
    (rope("ntk", original_length=64), "never read"),
    (rope("yarn", original_length=-1), "0 or more"),
    (rope("dynamic_ntk", **{"dynamic_ntk.alpha": 0.5}), "1 or more"),
    (rope("yarn", **{"yarn.beta_fast": 0.0}), "above 0"),
    (rope("ntk_by_parts", **{"ntk_by_parts.beta_slow": 32.0}), "less than beta_fast = 32.0"),
    (rope("yarn", **{"yarn.temperature": -1.0}), "0 or more"),
    (rope("llama3", **{"llama3.low_frequency_factor": 0.0}), "above 0"),
    (rope("llama3", **{"llama3.high_frequency_factor": 1.0}), "low_frequency_factor = 1.0"),
    (rope("yarn") | {"position.rope.base": 1.0}, "yarn needs more than 1"),
    (t5(num_buckets=0), "2 or more"),
    (t5(num_buckets=7), "multiple of 2"),
    (t5(max_distance=16), "half of num_buckets = 32"),
    (ENCODER | t5(num_buckets=2), "4 or more"),
    (ENCODER | t5(num_buckets=6), "multiple of 4"),
    (fire(init_length=0.0), "above 0"),
    (fire(width=0), "1 or more"),
    ({"position.kind": "shaw", "attention_kernel": "blockwise"}, "as shaw needs"),
    (
        {"layer_pattern": "cope, rope", "position.kind": "rope", "attention_kernel": "splash"},
        "cope",
    ),
    ({"position.kind": "t5", "position.source.kind": "random_float"}, "t5 looks up whole ones"),
    ({"position.kind": "learned", "position.source.kind": "random_float"}, "learned looks up"),
    (FLOATS | {"position.logn_length": 8}, "a number of tokens"),
    (FLOATS | rope("dynamic_ntk"), "not the length of a text"),
    (FLOATS | {"position.source.random_float.steps": 48}, "power of two"),
    (FLOATS | {"position.source.random_float.steps": 0}, "1 or more"),
    (
        FLOATS | {"position.source.range": 2**15, "position.source.random_float.steps": 64},
        "1048576",
    ),
    ({"position.kind": "fier"}, "did you mean fire?"),
    ({"layer_pattern": "rope x2, learned"}, "added to the embeddings"),
]
ELSEWHERE = [
    (rope("ntk") | {"head_dim": 2}, "position.rope.scaling.kind", "4 or more"),
    (rope("linear") | {"position.rope.keep": 0.0}, "position.rope.scaling.kind", "no frequency"),
    (rope() | {"head_dim": 1}, "position.rope.fraction", "even whole number"),
    (rope() | {"head_dim": 5}, "position.rope.fraction", "even whole number"),
    ({"layer_pattern": "t5, none"} | t5(num_buckets=3), "position.t5.num_buckets", "multiple"),
]


def test_every_kind_has_an_encoding():
    assert {*INPUT_POSITIONS, *LAYER_POSITIONS} == set(ENCODINGS)
    assert {kind for kind, c in ENCODINGS.items() if c.at_input} == set(INPUT_POSITIONS)
    objects = {kind: object.__new__(c) for kind, c in ENCODINGS.items()}
    see = {kind for kind, x in objects.items() if overrides(x, "score", "mix")}
    assert see == set(CONTENT_POSITIONS)
    whole = {kind for kind, c in ENCODINGS.items() if not c.continuous}
    assert whole - {"none"} == set(TABLE_POSITIONS)
    assert ENCODINGS["none"] is PositionEncoding


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [*((changes, list(changes)[-1], words) for changes, words in REFUSED), *ELSEWHERE],
    ids=str,
)
def test_contradictions_are_refused(changes, where, words):
    with pytest.raises(UserError) as caught:
        model_config(**changes)
    assert caught.value.where == f"model.{where}"
    assert words in f"{caught.value.what}, {caught.value.mend}"


@pytest.mark.parametrize(
    "changes",
    [
        {"position.kind": "none"} | {"position.rope.scaling.factor": 0.1},
        {"position.kind": "cope", "attention_kernel": "reference", "position.shaw.max_distance": 0},
        {"position.source.random_float.steps": 3},
        FLOATS | {"position.source.range": 2**14},
        t5(num_buckets=6),
        ENCODER | t5(num_buckets=4, max_distance=3),
        {"position.kind": "alibi", "num_heads": 1, "d_model": 1},
        rope("yarn", factor=1.0),
        rope("ntk_by_parts", **{"yarn.beta_fast": -1.0}),
        rope() | {"position.rope.keep": 0.0},
        {"layer_pattern": "rope:window=4 x3, kerple_log, fire", "num_layers": 5},
    ],
    ids=str,
)
def test_what_is_not_selected_may_be_anything(changes):
    model_config(**changes)
