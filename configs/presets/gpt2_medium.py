"""GPT-2 medium; Radford et al. 2019, table 2. 354,823,168 parameters."""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import gpt2_small


def get_config() -> ConfigDict:
    c: Any = gpt2_small.get_config()
    c.model.num_layers = 24
    c.model.d_model = 1024
    c.model.num_heads = 16
    c.model.d_ff = 4096
    c.model.scan_layers = True
    c.schedule.peak_value = 3e-4
    return c
