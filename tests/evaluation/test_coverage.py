"""What evaluation visits and training never did, counted by hand on small rows."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from jaxformer.config import RunConfig
from jaxformer.evaluation.coverage import (
    BUCKETS,
    DISTANCES,
    IDS,
    Coverage,
    describe,
    largest_distances,
    new_from,
)
from jaxformer.evaluation.evaluators import Total
from jaxformer.evaluation.schemes import configure, parse_schemes
from jaxformer.nn import masks
from tests.builders import change

TRAINED = 8  # tokens of a row of training


def config(kind="learned", **changes):
    """A run on text in rows of 8 tokens."""
    c = base.get_config()
    c.data.update(source="text", path="a.txt", length=TRAINED)
    c.model.update(num_layers=2, d_model=8, num_heads=2, vocab_size=9, max_length=64)
    c.model.position.kind = kind
    return RunConfig.from_config_dict(change(c, changes))


def batch_of(*documents, width):
    """One row of packed documents, every token supervised."""
    segments_1L = np.zeros((1, width), np.int32)
    ids = np.repeat(np.arange(1, len(documents) + 1), documents)
    segments_1L[0, : len(ids)] = ids
    return {
        "tokens": np.zeros((1, width), np.int32),
        "segment_ids": segments_1L,
        "positions": np.asarray(masks.contiguous_positions(jnp.asarray(segments_1L))),
        "weights": (segments_1L > 0).astype(np.float32),
        "rows": np.zeros(1, np.int32),
    }


def counted(cfg, batch, scheme="trained"):
    """{metric: counted tokens} where there are any, and all evaluated tokens."""
    (parsed,) = parse_schemes(scheme)
    model = types.SimpleNamespace(config=configure(parsed, cfg.model, TRAINED))
    sums = jax.jit(functools.partial(Coverage(cfg).sums, model))(batch)
    totals = {float(total) for _, total in sums.values()}
    return {name: int(count) for name, (count, _) in sums.items() if count}, *totals


SOURCE, T5 = "model.position.source", "model.position.t5"
OFFSET, RANDOMIZED = {f"{SOURCE}.kind": "offset"}, {f"{SOURCE}.kind": "randomized"}
LAYERS = {"model.layer_pattern": "rope:window=3, rope"}
FEW = {f"{T5}.num_buckets": 8}
CASES = {
    # 12 + 3 tokens: ids 8 … 11 of the first document are new.
    "learned": ("learned", {}, "trained", {IDS: 4}),
    "sinusoidal": ("sinusoidal", {}, "trained", {IDS: 4}),
    "fire": ("fire", {}, "trained", {IDS: 4}),
    "none": ("none", {}, "trained", {}),
    "rope": ("rope", {}, "trained", {DISTANCES: 4}),
    "alibi": ("alibi", {}, "trained", {DISTANCES: 4}),
    "xpos": ("xpos", {}, "trained", {DISTANCES: 4}),
    "xpos interpolated": ("xpos", {}, "pi:2", {}),
    "sandwich": ("sandwich", {}, "trained", {DISTANCES: 4}),
    # What is farther than training saw: as near keys to some heads, as far ones to all others.
    "hard_alibi": ("hard_alibi", {}, "trained", {}),
    "cope": ("cope", {}, "trained", {}),
    "shaw": ("shaw", {}, "trained", {DISTANCES: 4}),
    "shaw, last vector": ("shaw", {"model.position.shaw.max_distance": 7}, "trained", {}),
    # Layers that look no farther than in training see no new distance, whatever the ids.
    "window of training": ("rope", {"model.window": 5}, "trained", {}),
    "window of the scheme": ("rope", {}, "window:8", {}),
    "window too wide": ("rope", {}, "window:10", {DISTANCES: 4}),
    "a layer of two": ("rope", LAYERS, "trained", {DISTANCES: 4}),
    "none at test": ("rope", {}, "none", {}),
    # 11 / 1.5 = 7.3, 10 / 1.5 = 6.7: the last token alone is beyond the distance 7.
    "interpolation": ("rope", {}, "pi:1.5", {DISTANCES: 1}),
    "enough interpolation": ("rope", {}, "pi:2", {}),
    "other scalings count distances": ("rope", {}, "yarn:2", {DISTANCES: 4}),
    # 8 buckets, 4 for single distances, 16 the last: bucket 4 holds 4 … 5, 5: 6 … 7, 6: 8 … 11.
    "t5": ("t5", FEW | {f"{T5}.max_distance": 16}, "trained", {BUCKETS: 4}),
    # All that is 5 or farther is in the last bucket, which training used.
    "t5, last bucket": ("t5", FEW | {f"{T5}.max_distance": 6}, "trained", {}),
    # An offset in training widens ids, not distances; a randomized source both.
    "offset": ("learned", OFFSET, "trained", {}),
    "offset up to 10": ("learned", OFFSET | {f"{SOURCE}.range": 10}, "trained", {IDS: 2}),
    "offset, distances": ("rope", OFFSET, "trained", {DISTANCES: 4}),
    "randomized": ("rope", RANDOMIZED, "trained", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_new_to_a_decoder(case):
    kind, changes, scheme, expected = CASES[case]
    cfg = config(kind, **changes)
    assert counted(cfg, batch_of(12, 3, width=16), scheme) == (expected, 15.0)
    assert counted(cfg, batch_of(8, 6, width=16), scheme) == ({}, 14.0)


def test_training_saw_no_farther_than_its_windows():
    """Here a layer of window 5 is evaluated with all tokens in sight, which no scheme does."""
    narrow = config("rope", **{"model.layer_pattern": "rope:window=5, none"})
    wide = config("rope", **{"model.layer_pattern": "rope, none"}).model
    assert new_from(narrow, wide, "positions") == [(DISTANCES, 5, 0)]
    assert new_from(narrow, narrow.model, "positions") == [(DISTANCES, 5, 5)]


def test_only_supervised_tokens_are_counted():
    batch = batch_of(12, width=14)
    batch["weights"][0, :9] = 0
    assert counted(config(), batch) == ({IDS: 3}, 3.0)


def test_an_encoder_sees_to_both_sides():
    """Of 10 tokens those less than 8 from both ends see no farther than training did: 2 … 7."""
    changes = {"model.architecture": "encoder", "objective.kind": "masked_lm"}
    cfg = config("rope", **changes)
    assert counted(cfg, batch_of(10, width=12)) == ({DISTANCES: 4}, 10.0)
    assert counted(config("t5", **changes), batch_of(10, width=12)) == ({BUCKETS: 4}, 10.0)


def test_source_and_target_have_lengths_of_their_own():
    cfg = config(
        **{
            "model.architecture": "encoder_decoder",
            "objective.kind": "seq2seq",
            "data.target_path": "b.txt",
            "data.target_length": 5,
        }
    )
    batch = batch_of(7, width=7)
    source = batch_of(9, width=9)
    for name in ("positions", "segment_ids"):
        batch[f"source_{name}"] = source[name]
    batch["source"] = source["tokens"]
    assert counted(cfg, batch) == ({IDS: 2 + 1}, 16.0)


def test_a_prefix_is_seen_by_earlier_tokens():
    cfg = config("rope", **{"objective.kind": "prefix_lm"})
    batch = batch_of(10, width=10) | {"prefix": np.arange(10)[None] < 9}
    assert counted(cfg, batch) == ({DISTANCES: 1 + 2}, 10.0)  # token 0 sees 8; 8 and 9 see 0


def test_a_task_is_trained_up_to_its_longest_sentence():
    c = base.get_config()  # at most 3 modifiers: 19 inputs of a row of 20
    c.model.vocab_size = 9
    cfg = RunConfig.from_config_dict(c)
    batch = batch_of(23, width=24)
    assert counted(cfg, batch) == ({IDS: 4}, 23.0)


def test_the_largest_distance_is_to_any_id_in_sight():
    """Ids need not rise: those of abacus positions do not."""
    ids = jnp.array([[5, 0, 9, 3, 7, 2]])
    segments = jnp.array([[1, 1, 1, 1, 2, 2]])
    far = largest_distances(ids, segments, True, None, 0)
    assert far[0].tolist() == [0, 5, 9, 6, 0, 5]
    near = largest_distances(ids, segments, True, None, 2)
    assert near[0].tolist() == [0, 5, 9, 6, 0, 5]
    both = largest_distances(ids, segments, False, None, 0)
    assert both[0].tolist() == [5, 9, 9, 6, 5, 5]


def test_the_lines_of_the_terminal():
    def at(ids, distances):
        return {IDS: Total(ids, 10.0), DISTANCES: Total(distances, 10.0), BUCKETS: Total(0.0, 10.0)}

    assert describe({3: at(0, 0), 5: at(0, 0)}) == []
    assert describe({3: at(0, 0), 5: at(2, 0), 8: at(4.5, 1), 9: at(5, 0)}) == [
        "Tokens with ids that training never had: 20.0 % at 5 … 50.0 % at 9",
        "Tokens with distances that training never had: 10.0 % at 8",
    ]
