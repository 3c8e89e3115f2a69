"""Each property finds the mistake it is for: encodings with one mistake each, and a right one."""

import pytest

from jaxformer.analysis.position_properties import counterexample, properties, undeclared
from jaxformer.analysis.subjects import make_subject, shrink
from tests.builders import model_config

HOOKS, TRACES = "hooks keep shapes and types", "traces under jit, scanned, in bfloat16"
CAUSAL, PADDING = "sees earlier tokens only", "padding changes nothing"
PACKING, DECODING = "packed documents equal separate ones", "cached decoding equals the full pass"
SHIFT, CLAMPED = "a shift of ids changes nothing", "no id is clamped"
TRAINING = "gradients reach what it trains"
MODEL = {CAUSAL, PADDING, PACKING, DECODING, SHIFT, CLAMPED}
# What is found of each, and words of the first finding.
WRONG = {
    "OverLength": ({PADDING, DECODING}, "row 2, token 1: logits are off by"),
    "OfTheRow": ({PACKING, DECODING, SHIFT}, "document 2 of 3, packed: row 0, token 1"),
    "NotShared": (MODEL | {HOOKS, TRACES}, "bias gives float32[2, 3, 5] for 3 queries and 5 keys"),
    "Absolute": ({SHIFT}, "shifted by 100: row 0, token 0"),
    "Smeared": ({CAUSAL, PADDING, PACKING, DECODING}, "row 1: token 0 depends on token 1"),
    "Clamped": ({CLAMPED}, "ids 7 and 8 are embedded alike"),
    "Bounded": ({CLAMPED}, "id 16 gives numbers, bound is 16"),
    "Coarse": ({HOOKS}, "are the angles float32?"),
    "ByHead": ({SHIFT}, "shifted by 100: row 0"),
    "Peeking": ({TRACES}, "raises TracerBoolConversionError"),
    "Unused": ({TRAINING}, "no gradient reaches position/"),
    "Untold": ({TRAINING}, "temperature while trained = False"),
    "CountsAll": ({CAUSAL, PADDING, PACKING, DECODING}, "depends on token"),
    "Narrow": ({HOOKS}, "score gives bfloat16"),
    "Infinite": (MODEL, "depends on token 1, gradient nan"),
}


def subject_of(name):
    kind = name if name.islower() else f"{__package__ or 'tests.analysis'}.wrong_encodings:{name}"
    return make_subject(shrink(model_config(**{"position.kind": kind}), {}))


def found(subject):
    tried = {what: counterexample(holds, subject) for what, holds in properties(subject).items()}
    return {what: text for what, text in tried.items() if text}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found(name):
    expected, words = WRONG[name]
    failed = found(subject_of(name))
    assert set(failed) == expected, failed
    assert words in next(iter(failed.values()))


def test_what_holds_but_is_not_declared():
    subject = subject_of("Undeclared")
    assert {SHIFT, DECODING}.isdisjoint(properties(subject))
    assert [text.split(":")[0] for text in undeclared(subject)] == ["shift_invariant", "cacheable"]
    assert undeclared(subject_of("sinusoidal")) == undeclared(subject_of("alibi")) == []
