"""The big Transformer of Vaswani et al. 2017, table 3; 214,245,376 parameters."""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import vaswani_base


def get_config() -> ConfigDict:
    c: Any = vaswani_base.get_config()
    m = c.model
    m.d_model = 1024
    m.num_heads = 16
    m.d_ff = 4096
    m.dropout.embedding = 0.3
    m.dropout.residual = 0.3
    c.schedule.peak_value = (m.d_model * 4000) ** -0.5
    c.train.num_steps = 300_000
    return c
