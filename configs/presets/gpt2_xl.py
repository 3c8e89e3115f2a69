"""GPT-2 XL; Radford et al. 2019, table 2. 1,557,611,200 parameters."""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import gpt2_small


def get_config() -> ConfigDict:
    c: Any = gpt2_small.get_config()
    c.model.num_layers = 48
    c.model.d_model = 1600
    c.model.num_heads = 25
    c.model.d_ff = 6400
    c.model.scan_layers = True
    c.schedule.peak_value = 2e-4
    return c
