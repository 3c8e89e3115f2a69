"""Any text: a file, or a folder with --config.data.source=folder, in BPE tokens made from it.

--config.data.path=PATH names it; --config.data.pattern='*.py' picks files of a folder.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.num_layers = 4
    c.model.num_heads = 4
    c.model.d_model = 128
    c.model.max_length = 128
    c.model.position.kind = "rope"
    c.data.source = "text"
    c.data.length = 128
    c.data.pack = True
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = 1024
    c.optimizer.b2 = 0.99
    c.optimizer.weight_decay = 0.1
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 100
    c.train.num_steps = 1000
    c.train.num_epochs = 0.0
    c.train.batch_size = 16
    return c
