"""Characters of one text file, in the shape and budget of nanoGPT's small run on a CPU.

--config.data.path=FILE names the text.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.num_layers = 4
    c.model.num_heads = 4
    c.model.d_model = 128
    c.model.max_length = 64
    c.model.initializer = "xavier"  # learns faster than gpt2 at this width and budget
    c.data.source = "text"
    c.data.length = 64
    c.data.pack = True
    c.data.tokenizer.kind = "char"
    c.optimizer.b2 = 0.99
    c.optimizer.weight_decay = 0.1
    c.schedule.peak_value = 3e-3
    c.schedule.warmup_steps = 100
    c.train.num_steps = 2000
    c.train.num_epochs = 0.0
    c.train.batch_size = 12
    return c
