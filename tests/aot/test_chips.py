"""Topologies by name, and what is refused before anything is compiled."""

import importlib.util

import pytest

from jaxformer.aot.chips import CHIPS, describe_devices, parse_topology
from jaxformer.errors import UserError
from jaxformer.training.metrics import PEAK_FLOPS


def test_a_name_gives_chip_and_shape():
    topology = parse_topology("v5e:16x16")
    assert (topology.chip.name, topology.shape, topology.num_chips) == ("v5e", (16, 16), 256)
    assert parse_topology("v5p:2x2x4").num_chips == 16
    assert parse_topology("v6e:2x4").name == "v6e:2x4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v9x:2x2", "--aot: is 'v9x:2x2', give CHIP:AxB or CHIP:AxBxC, e.g. v5e:16x16; chips: v5e"),
        ("v5e", "--aot: is 'v5e', give"),
        ("v5e:0x4", "--aot: is 'v5e:0x4'"),
        ("v5e:2x2x2", "v5e:2x2x2 has 3 axes, a v5e slice has 2, give v5e:AxB"),
        ("v5p:4x4", "v5p:4x4 has 2 axes, a v5p slice has 3, give v5p:AxBxC"),
    ],
)
def test_other_names_are_refused(text, words):
    with pytest.raises(UserError) as caught:
        parse_topology(text)
    assert words in str(caught.value)


def test_without_libtpu_the_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "libtpu" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    with pytest.raises(UserError) as caught:
        describe_devices(parse_topology("v5e:2x2"))
    assert str(caught.value).startswith("--aot: needs libtpu, install the extra: ")
    assert "[tpu]" in str(caught.value)


def test_peaks_are_those_that_mfu_is_measured_against():
    assert {name: chip.flops for name, chip in CHIPS.items()} == {
        name: PEAK_FLOPS[f"TPU {name}"] for name in CHIPS
    }
