"""T5 small, version 1.1: gated GELU (Shazeer 2020), untied head. 76,961,152 parameters.

384 of them are the relative position biases (32 buckets × 6 heads, twice). Dropout is off as in
its pretraining; fine-tuning has .1.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import t5_small


def get_config() -> ConfigDict:
    c: Any = t5_small.get_config()
    m = c.model
    m.num_layers = 8
    m.num_heads = 6
    m.d_ff = 1024
    m.activation = "geglu"
    m.tie_embeddings = False
    m.scale_logits = False
    m.dropout.embedding = 0.0
    m.dropout.attention = 0.0
    m.dropout.feed_forward = 0.0
    m.dropout.residual = 0.0
    return c
