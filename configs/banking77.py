"""Intents of bank customers, 77 classes (Casanueva et al. 2020), an encoder from scratch.

--config.data.path=train.csv; --config.data.validation_path=test.csv takes all of it for training.
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
    c.model.position.kind = "none"  # learned ones gained nothing: docs/lab_log.md
    c.model.head.kind = "sequence"
    c.model.head.pooling = "mean"
    c.model.dropout.embedding = 0.4
    c.model.dropout.residual = 0.3
    c.objective.kind = "sequence_classification"
    c.objective.label_smoothing = 0.1
    c.data.source = "csv"
    c.data.label_field = "category"
    c.data.length = 32
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = 2000
    c.optimizer.b2 = 0.98
    c.optimizer.weight_decay = 0.05
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 300
    c.train.num_epochs = 15.0
    c.train.batch_size = 64
    return c
