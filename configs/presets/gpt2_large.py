"""GPT-2 large; Radford et al. 2019, table 2. 774,030,080 parameters."""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import gpt2_small


def get_config() -> ConfigDict:
    c: Any = gpt2_small.get_config()
    c.model.num_layers = 36
    c.model.d_model = 1280
    c.model.num_heads = 20
    c.model.d_ff = 5120
    c.model.scan_layers = True
    c.schedule.peak_value = 2.5e-4
    return c
