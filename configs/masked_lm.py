"""Masked language model of any text, in BPE tokens made from it: BERT's objective, small, Pre-LN.

--config.data.path=FILE names the text.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.architecture = "encoder"
    c.model.num_layers = 4
    c.model.d_model = 128
    c.model.num_heads = 4
    c.model.max_length = 64
    c.model.head.transform = True
    c.model.head_bias = True
    c.objective.kind = "masked_lm"
    c.data.source = "text"
    c.data.length = 64
    c.data.pack = True
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = 2048
    c.optimizer.b2 = 0.98
    c.optimizer.weight_decay = 0.05
    c.schedule.kind = "linear"
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 200
    c.train.num_steps = 3000
    c.train.num_epochs = 0.0
    c.train.batch_size = 32
    return c
