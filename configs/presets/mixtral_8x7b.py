"""Mixtral 8x7B; Jiang et al. 2024, table 1. 46,702,792,704 parameters, 12,879,925,248 a token.

Dropless, as it is published: `--config.model.moe.capacity_factor=1.25` drops in training.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import llama_7b


def get_config() -> ConfigDict:
    c: Any = llama_7b.get_config()
    m = c.model
    m.num_kv_heads = 8
    m.d_ff = 14336
    m.max_length = 32768
    m.norm_epsilon = 1e-5
    m.position.rope.base = 1e6
    m.moe.num_experts = 8
    m.moe.top_k = 2
    c.data.length = 32768
    return c
