"""The decoder against the NumPy float64 oracle, for every option pairwise."""

import dataclasses

import numpy as np
import pytest

from tests import oracle
from tests.builders import PAIRS, apply, grid_config, model_config, product, random_params, row_id

TOKENS = np.random.default_rng(0).integers(0, 40, (4, 12)).astype(np.int32)
SEGMENT_IDS = np.array(
    [
        [1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5],
        [0, 1, 1, 0, 1, 2, 2, 0, 0, 2, 2, 2],
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ],
    np.int32,
)


def compare(cfg):
    params = random_params(cfg)
    unrolled = random_params(dataclasses.replace(cfg, scan_layers=False))
    logits_BLV = np.asarray(apply(cfg, params, TOKENS, SEGMENT_IDS).logits)
    assert logits_BLV.dtype == np.float32
    for b in range(4):
        expected_LV = oracle.row_logits(cfg, unrolled, TOKENS[b], SEGMENT_IDS[b])
        real = SEGMENT_IDS[b] != 0
        error = np.abs(logits_BLV[b] - expected_LV)[real].max()
        assert error < 1e-5 * max(1, np.abs(expected_LV).max()), error


@pytest.mark.parametrize("row", PAIRS, ids=row_id)
def test_logits_equal_the_oracle(row):
    compare(grid_config(row))


@pytest.mark.slow
@pytest.mark.parametrize("row", product(), ids=row_id)
def test_logits_equal_the_oracle_in_the_full_product(row):
    compare(grid_config(row))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_exact", "silu", "reglu", "geglu"])
def test_activations_that_the_grid_leaves_out(activation):
    compare(model_config(activation=activation))


@pytest.mark.parametrize(
    "changes",
    [
        {"position.kind": "rope", "position.rope.base": 100.0},
        {"position.kind": "sinusoidal", "position.sinusoidal.base": 100.0},
        {"position.kind": "sinusoidal", "position.sinusoidal.scale": 0.25},
        {"norm_epsilon": 0.5},
        {"norm": "rmsnorm", "norm_epsilon": 0.5},
        {"num_layers": 1, "d_ff": 0, "head_dim": 6, "num_kv_heads": 2},
    ],
    ids=str,
)
def test_numbers_of_the_config_reach_the_formula(changes):
    compare(model_config(**changes))


def scaled(kind, **fields):
    fields = {f"position.rope.scaling.{name}": value for name, value in fields.items()}
    return {"position.kind": "rope", "head_dim": 16, "position.rope.scaling.kind": kind} | fields


PARTS = {"factor": 4.0, "original_length": 2048}
POSITIONS = [
    *({"position.kind": kind} for kind in ("alibi", "learned_alibi", "kerple_log")),
    {"position.kind": "kerple_power", "position.logn_length": 3},
    {"position.kind": "t5", "position.t5.num_buckets": 8, "position.t5.max_distance": 7},
    {"position.kind": "fire", "position.fire.init_length": 4.0, "position.fire.width": 5},
    {"layer_pattern": "fire, t5:window=3", "position.kind": "t5", "num_kv_heads": 2},
    {"position.kind": "rope", "head_dim": 16, "position.rope.keep": 0.4},
    scaled("linear", factor=2.5),
    scaled("ntk", factor=3.0) | {"position.rope.fraction": 0.5},
    scaled("dynamic_ntk", original_length=3, **{"dynamic_ntk.alpha": 1.5}),
    *(scaled(kind, **PARTS) for kind in ("ntk_by_parts", "yarn", "llama3")),
]
SECOND_WAVE = [
    {"position.kind": "hard_alibi"},
    {"position.kind": "sandwich", "position.sandwich.width": 6},
    {"position.kind": "shaw", "position.shaw.max_distance": 3, "num_kv_heads": 2},
    {"position.kind": "shaw", "position.shaw.max_distance": 2, "position.shaw.on_values": True}
    | {"scale_attention": False},
    {"position.kind": "cope", "position.cope.num_positions": 3, "num_kv_heads": 2},
    {"position.kind": "cope", "window": 4, "attention_softcap": 2.0, "attention_sink": True},
    {"position.kind": "xpos", "position.xpos.scale_base": 4.0},
    {"position.kind": "xpos", "position.xpos.scale_base": 8.0, "position.xpos.gamma": 1.5}
    | {"position.rope.layout": "interleaved", "position.rope.fraction": 0.5, "head_dim": 8},
]


@pytest.mark.parametrize("changes", POSITIONS + SECOND_WAVE, ids=str)
def test_position_encodings(changes):
    compare(model_config(**changes))


@pytest.mark.parametrize("changes", POSITIONS[2:7] + POSITIONS[10:12] + SECOND_WAVE, ids=str)
def test_position_encodings_of_encoders(changes):
    compare(model_config(architecture="encoder", **changes))
