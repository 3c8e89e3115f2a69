"""A small ViT on the 8 × 8 digits that scikit-learn brings along: a minute on a CPU."""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.architecture = "encoder"
    m.num_layers = 4
    m.d_model = 64
    m.num_heads = 4
    m.max_length = 17
    m.activation = "gelu_exact"
    m.initializer = "lecun"
    m.patches.image_size = 8
    m.patches.patch_size = 2
    m.patches.channels = 1
    m.head.kind = "sequence"
    m.head.pooler = False
    m.dropout.feed_forward = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "sequence_classification"
    c.data.source = "images"
    c.data.path = "digits"
    c.data.length = 17  # 16 patches and the class token
    c.data.validation_fraction = 0.2
    c.optimizer.b2 = 0.99
    c.optimizer.weight_decay = 0.05
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 100
    c.train.num_steps = 1000
    c.train.num_epochs = 0.0
    c.train.eval_every = 250
    return c
