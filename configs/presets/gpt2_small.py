"""GPT-2 small; Radford et al. 2019, table 2. 124,439,808 parameters."""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.num_layers = 12
    m.d_model = 768
    m.num_heads = 12
    m.d_ff = 3072
    m.vocab_size = 50257
    m.max_length = 1024
    m.dropout.embedding = 0.1
    m.dropout.attention = 0.1
    m.dropout.residual = 0.1
    c.data.source = "text"  # --config.data.path=FILE
    c.data.length = 1024
    c.data.pack = True
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = m.vocab_size
    c.optimizer.b2 = 0.95  # the optimizer of Brown et al. 2020, table 2.1 and App. B
    c.optimizer.weight_decay = 0.1
    c.schedule.peak_value = 6e-4
    return c
