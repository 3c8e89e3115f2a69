"""Topics of Chinese news titles, 10 classes, an encoder of characters from scratch.

--config.data.path=FILE with lines 'title<TAB>class'; a fifth of them, drawn by data.split_seed, is
validation.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.architecture = "encoder"
    c.model.num_layers = 1
    c.model.d_model = 128
    c.model.num_heads = 4
    c.model.d_ff = 256
    c.model.max_length = 32
    c.model.initializer = "xavier"
    c.model.head.kind = "sequence"
    c.model.head.pooling = "mean"
    c.model.dropout.embedding = 0.4
    c.model.dropout.residual = 0.3
    c.objective.kind = "sequence_classification"
    c.objective.label_smoothing = 0.1
    c.data.source = "tsv"
    c.data.columns = "text,label"
    c.data.length = 32
    c.data.validation_fraction = 0.2
    c.data.tokenizer.kind = "char"
    c.optimizer.b2 = 0.98
    c.optimizer.weight_decay = 0.05
    c.schedule.peak_value = 1e-3
    c.schedule.warmup_steps = 200
    c.train.num_epochs = 15.0
    c.train.batch_size = 64
    return c
