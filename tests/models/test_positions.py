"""Every position encoding within every architecture (DESIGN §5, 1-4 and 12), by its declarations.

What is tried of an encoding follows from what it declares (`analysis/position_properties.py`), and
new kinds are picked up. Only the reference kernel exists yet: invariant 6 waits for others.
"""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.analysis.position_properties import counterexample, properties, undeclared
from jaxformer.analysis.subjects import LENGTH, ROWS, draw_words, make_subject, shrink
from jaxformer.errors import UserError
from jaxformer.models import EncoderDecoder
from jaxformer.nn.positions import ENCODINGS
from jaxformer.nn.positions.scaling import SCALINGS
from tests.builders import model_config, pairwise, row_id

ROPE = {"position.kind": "rope"}
# Each kind with the defaults, and then options that change what an encoding does.
ENCODED = {kind: {"position.kind": kind} for kind in ENCODINGS}
ENCODED |= {
    "sin_cos": {"position.kind": "sinusoidal", "position.sinusoidal.layout": "concatenated"},
    "rope_pairs": ROPE | {"position.rope.layout": "interleaved", "position.rope.fraction": 0.5},
    "p_rope": ROPE | {"position.rope.keep": 0.5},
    "logn": ROPE | {"position.logn_length": 8},
    "fire_short": {"position.kind": "fire", "position.fire.init_length": 4.0},
    "t5_short": {
        "position.kind": "t5",
        "position.t5.num_buckets": 4,
        "position.t5.max_distance": 5,
    },
}
# With the defaults these show little within a dozen tokens.
ENCODED |= {
    "xpos": {"position.kind": "xpos", "position.xpos.scale_base": 16.0},
    "shaw": {
        "position.kind": "shaw",
        "position.shaw.max_distance": 3,
        "position.shaw.on_values": True,
    },
    "cope": {"position.kind": "cope", "position.cope.num_positions": 3},
}
for scaling in SCALINGS:
    if scaling != "none":
        ENCODED[scaling] = ROPE | {"position.rope.scaling.kind": scaling}
        if scaling != "dynamic_ntk":
            ENCODED[scaling] |= {"position.rope.scaling.factor": 4.0}
    if scaling in ("ntk_by_parts", "yarn"):  # so that some of 4 pairs lie between the two
        ENCODED[scaling] |= {f"position.rope.scaling.{scaling}.beta_fast": 2.0}
        ENCODED[scaling] |= {f"position.rope.scaling.{scaling}.beta_slow": 0.01}

AXES = {
    "encoding": list(ENCODED),
    "architecture": ["decoder", "encoder", "encoder_decoder"],
    "heads": ["gqa", "mha", "mqa"],
    "reach": ["all", "window", "pattern"],
    "layers": ["unrolled", "scanned"],
}
HEADS = {"gqa": 3, "mha": 0, "mqa": 1}


@functools.cache
def encoded(encoding):
    return model_config(**ENCODED[encoding])


def config(row):
    """The tiny config of a row. Raises UserError for what cannot be combined."""
    row = {axis: values[0] for axis, values in AXES.items()} | row
    changes = {"architecture": row["architecture"]}
    changes |= {"scan_layers": row["layers"] == "scanned", "num_kv_heads": HEADS[row["heads"]]}
    changes["window"] = 3 if row["reach"] == "window" else 0
    if row["reach"] == "pattern":
        kind = ENCODED[row["encoding"]]["position.kind"]
        changes["layer_pattern"] = f"{kind}:window=3, none"
    return shrink(encoded(row["encoding"]), changes)


def fits(row):
    try:
        config(row)
    except UserError:
        return False
    return True


COVER = pairwise(AXES, fits)


def product():
    """Every encoding × architecture × heads × reach; unrolled and scanned layers take turns."""
    for n, values in enumerate(itertools.product(*list(AXES.values())[:4])):
        row = dict(zip(AXES, values, strict=False))
        row["layers"] = "scanned" if n % 2 and row["reach"] != "pattern" else "unrolled"
        if fits(row):
            yield row


def try_all(row):
    subject = make_subject(config(row))
    found = {what: counterexample(holds, subject) for what, holds in properties(subject).items()}
    assert not any(found.values()), {what: text for what, text in found.items() if text}


@pytest.mark.parametrize("row", COVER, ids=row_id)
def test_what_it_declares_holds(row):
    try_all(row)


@pytest.mark.slow
@pytest.mark.parametrize("row", list(product()), ids=row_id)
def test_what_it_declares_holds_in_the_full_grid(row):
    try_all(row)


def test_every_encoding_meets_every_architecture():
    met = {(row["encoding"], row["architecture"]) for row in COVER}
    assert met == set(itertools.product(ENCODED, AXES["architecture"]))
    assert set(ENCODINGS) == {changes["position.kind"] for changes in ENCODED.values()}


WITHOUT_IDS = ("none", "cope")  # which counts what it sees


@pytest.mark.parametrize("encoding", [e for e in ENCODED if e not in WITHOUT_IDS])
def test_ids_are_what_counts(encoding):
    """Not places in the row: after a gap between ids logits are others."""
    ids_BL = np.arange(LENGTH, dtype=np.int32)[None].repeat(ROWS, 0)
    gaps_BL, subject = ids_BL + (ids_BL >= 6) * 4, make_subject(config({"encoding": encoding}))
    near, far = (subject.logits(draw_words(ROWS, LENGTH), None, ids) for ids in (ids_BL, gaps_BL))
    assert (np.abs(near - far).max(-1)[:, 6:] > 1e-4).all()


def test_encoders_have_the_bidirectional_form():
    """In a decoder all later keys share T5's bucket 0; an encoder tells them apart."""
    model = make_subject(config({"encoding": "t5", "architecture": "encoder_decoder"})).model
    assert isinstance(model, EncoderDecoder)
    first, later = jnp.zeros((1, 1), jnp.int32), jnp.arange(1, 5)[None]
    of_decoder, of_encoder = (
        np.asarray(side.position["t5"].bias(first, later))[0, :, 0]
        for side in (model.decoder, model.encoder)
    )
    assert (of_decoder == of_decoder[:, :1]).all()
    assert (np.diff(of_encoder) != 0).all()


@pytest.mark.parametrize("encoding", ENCODED)
def test_nothing_holds_undeclared(encoding):
    """Else its other properties would have to be tried too."""
    assert undeclared(make_subject(config({"encoding": encoding}))) == []
