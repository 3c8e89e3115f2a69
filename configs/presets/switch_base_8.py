"""Switch-Base with 8 experts; Fedus et al. 2022, table 9. 619,339,008 parameters.

T5 base in which every other layer's feed-forward network is one of 8; capacity factor 1.25,
balance weight and jitter .01 (§2.2, table 5).
"""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import t5_small


def get_config() -> ConfigDict:
    c: Any = t5_small.get_config()
    m = c.model
    m.num_layers = 12
    m.d_model = 768
    m.num_heads = 12
    m.d_ff = 3072
    m.moe.num_experts = 8
    m.moe.top_k = 1
    m.moe.normalize_top_k = False
    m.moe.every = 2
    m.moe.capacity_factor = 1.25
    m.moe.balance_weight = 0.01
    m.moe.jitter = 0.01
    return c
