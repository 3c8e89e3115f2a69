"""Every field of the model section changes the model (DESIGN §5, 14)."""

import functools
from typing import get_args, get_type_hints

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.models import init
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.positions.sources import give_ids
from tests.builders import apply, leaves, model_config, random_params

TOKENS = np.random.default_rng(0).integers(0, 40, (4, 6)).astype(np.int32)
SINUSOIDAL, ROPE = {"position.kind": "sinusoidal"}, {"position.kind": "rope"}
T5 = {"position.kind": "t5", "position.t5.num_buckets": 8, "position.t5.max_distance": 16}
FIRE = {"position.kind": "fire"}
SHAW = {"position.kind": "shaw"}
FLOATS = ROPE | {"position.source.kind": "random_float"}
PARTS = {"factor": 4.0, "original_length": 2048}  # within which some pairs turn and others do not


def scaling(kind, **fields):
    """RoPE of heads of 16 dimensions, scaled."""
    fields = {f"position.rope.scaling.{name}": value for name, value in fields.items()}
    return ROPE | {"head_dim": 16, "position.rope.scaling.kind": kind} | fields


BOTH = {"architecture": "encoder_decoder"}
ENCODER = {"architecture": "encoder"}
CLASSES = ENCODER | {"head.kind": "sequence", "head.num_classes": 3}
ABACUS = {
    "position.source.kind": "abacus",
    "position.source.abacus.max_offset": 4,
    "position.source.abacus.digits": tuple(range(20)),
}
MOE = {"moe.num_experts": 4}
# For each field: what selects it, and another value than the tiny config's.
OTHER = {
    "architecture": ({}, "encoder"),
    "num_layers": ({}, 1),
    "num_encoder_layers": (BOTH, 1),
    "d_model": ({}, 8),
    "num_heads": ({}, 2),
    "num_kv_heads": ({}, 2),
    "head_dim": ({}, 8),
    "d_ff": ({}, 24),
    "vocab_size": ({}, 41),
    "max_length": ({}, 17),
    "activation": ({}, "relu"),
    "norm": ({}, "rmsnorm"),
    "norm_placement": ({}, "sandwich"),
    "final_norm": ({}, "false"),
    "norm_epsilon": ({}, 0.1),
    "embedding_norm": ({}, True),
    "residual": ({}, False),
    "attention_bias": ({}, False),
    "attention_output_bias": ({}, False),
    "feed_forward_bias": ({}, False),
    "head_bias": ({}, True),
    "scale_attention": ({}, False),
    "qk_norm": ({}, True),
    "attention_softcap": ({}, 1.0),
    "logit_softcap": ({}, 1.0),
    "attention_sink": ({}, True),
    "window": ({}, 2),
    "layer_pattern": (ROPE, "rope, none"),
    "tie_embeddings": ({}, False),
    "share_embeddings": (BOTH, False),
    "scale_embeddings": ({}, True),
    "scale_logits": ({}, True),
    "initializer": ({}, "xavier"),
    "scan_layers": ({}, True),
    "layernorm.bias": ({}, False),
    "head.kind": (CLASSES, "token"),
    "head.transform": ({}, True),
    "head.num_classes": (CLASSES, 4),
    "head.pooling": (CLASSES, "mean"),
    "head.pooler": (CLASSES, False),
    "dropout.embedding": ({}, 0.5),
    "dropout.attention": ({}, 0.5),
    "dropout.feed_forward": ({}, 0.5),
    "dropout.residual": ({}, 0.5),
    "moe.num_experts": (MOE, 3),
    "moe.top_k": (MOE, 3),
    "moe.every": (MOE, 2),
    "moe.d_ff": (MOE | {"d_ff": 0}, 24),
    "moe.shared_d_ff": (MOE, 8),
    "moe.capacity_factor": (MOE, 0.5),
    "moe.normalize_top_k": (MOE, False),
    "moe.balance_weight": (MOE, 0.5),
    "moe.balance_over": (MOE, "row"),
    "moe.z_weight": (MOE, 0.5),
    "moe.jitter": (MOE, 0.5),
    "position.kind": ({}, "rope"),
    "position.sinusoidal.base": (SINUSOIDAL, 10.0),
    "position.sinusoidal.layout": (SINUSOIDAL, "concatenated"),
    "position.sinusoidal.scale": (SINUSOIDAL, 0.5),
    "position.rope.base": (ROPE, 10.0),
    "position.rope.layout": (ROPE, "interleaved"),
    "position.rope.fraction": (ROPE, 0.5),
    "position.rope.keep": (ROPE, 0.5),
    "position.rope.scaling.kind": (scaling("linear", factor=4.0), "ntk"),
    "position.rope.scaling.factor": (scaling("linear"), 2.0),
    "position.rope.scaling.original_length": (scaling("dynamic_ntk"), 3),
    "position.rope.scaling.dynamic_ntk.alpha": (scaling("dynamic_ntk", original_length=3), 2.0),
    "position.rope.scaling.ntk_by_parts.beta_fast": (scaling("ntk_by_parts", **PARTS), 8.0),
    "position.rope.scaling.ntk_by_parts.beta_slow": (scaling("ntk_by_parts", **PARTS), 4.0),
    "position.rope.scaling.yarn.beta_fast": (scaling("yarn", **PARTS), 8.0),
    "position.rope.scaling.yarn.beta_slow": (scaling("yarn", **PARTS), 4.0),
    "position.rope.scaling.yarn.temperature": (scaling("yarn", **PARTS), 2.0),
    "position.rope.scaling.llama3.low_frequency_factor": (scaling("llama3", **PARTS), 3.0),
    "position.rope.scaling.llama3.high_frequency_factor": (scaling("llama3", **PARTS), 40.0),
    "position.logn_length": ({}, 2),
    "position.t5.num_buckets": (T5, 4),
    "position.t5.max_distance": (T5, 5),
    "position.fire.init_length": (FIRE, 3.0),
    "position.fire.width": (FIRE, 5),
    "position.xpos.gamma": ({"position.kind": "xpos"}, 4.0),
    "position.xpos.scale_base": ({"position.kind": "xpos"}, 4.0),
    "position.hard_alibi.heads": ({"position.kind": "hard_alibi"}, 3),
    "position.sandwich.width": ({"position.kind": "sandwich"}, 4),
    "position.shaw.max_distance": (SHAW, 2),
    "position.shaw.on_values": (SHAW, True),
    "position.cope.num_positions": ({"position.kind": "cope"}, 3),
    "position.source.kind": ({}, "offset"),
    "position.source.range": ({"position.source.kind": "randomized"}, 8),
    "position.source.random_float.steps": (FLOATS, 2),
    "position.source.abacus.max_offset": (ABACUS, 9),
    "position.source.abacus.digits": (ABACUS, (3, 4)),
}


def paths(cls=ModelConfig, prefix=""):
    for name, kind in get_type_hints(cls).items():
        if hasattr(kind, "__dataclass_fields__"):
            yield from paths(kind, f"{prefix}{name}.")
        elif name != "prefix" and len(get_args(kind)) != 1:  # a single choice cannot be changed
            yield f"{prefix}{name}"


def test_the_table_has_every_field():
    """But those that change no number, options, the user's, and images (all in tests/nn/)."""
    same = {"remat", "attention_kernel", "logit_chunk"}
    images = {f"patches.{name}" for name in ("image_size", "patch_size", "channels")}
    assert {*OTHER, *same, *images, "position.options"} == set(paths())


@functools.cache
def seen(**changes):
    """Shapes, initial values, logits with dropout and the ids of training, and added losses."""
    cfg = model_config(**changes)
    start = leaves(init(cfg, jax.random.key(0)))
    inputs = (TOKENS, TOKENS[:, ::-1]) if cfg.architecture == "encoder_decoder" else (TOKENS,)
    key, ids = jax.random.key(0), np.broadcast_to(np.arange(6, dtype=np.int32), TOKENS.shape)
    batch = {"tokens": TOKENS, "segment_ids": np.ones_like(TOKENS), "positions": ids}
    ids = give_ids(cfg, batch, RowKey.of(key, len(TOKENS)))["positions"]
    out = apply(cfg, random_params(cfg), *inputs, positions=ids, key=key)
    added = {name: float(loss) for name, (loss, _) in out.losses.items()}
    shapes = {name: leaf.shape for name, leaf in start.items()}
    return shapes, start, np.asarray(out.logits), added


@pytest.mark.parametrize("path", OTHER)
def test_a_field_does_something(path):
    selected, value = OTHER[path]
    before, after = seen(**selected), seen(**(selected | {path: value}))
    same_shapes = before[0] == after[0]
    same_start = same_shapes and all((before[1][n] == after[1][n]).all() for n in before[1])
    same_logits = before[2].shape == after[2].shape and np.allclose(before[2], after[2], atol=1e-3)
    assert not (same_start and same_logits and before[3] == after[3])
