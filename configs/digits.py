"""A small ViT on the 8 × 8 digits that scikit-learn brings along: a minute on a CPU."""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.architecture = "encoder"
    m.num_layers = 3
    m.d_model = 64
    m.num_heads = 4
    m.max_length = 5
    m.activation = "gelu_exact"
    m.initializer = "lecun"
    m.patches.image_size = 8
    m.patches.patch_size = 4
    m.patches.channels = 1
    m.head.kind = "sequence"
    m.head.pooler = False
    m.dropout.feed_forward = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "sequence_classification"
    c.objective.label_smoothing = 0.1
    c.data.source = "images"
    c.data.path = "digits"
    c.data.length = 5  # 4 patches and the class token
    c.data.validation_fraction = 0.2
    c.optimizer.b2 = 0.99
    c.optimizer.weight_decay = 0.05
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 50
    c.train.num_steps = 500
    c.train.num_epochs = 0.0
    c.train.eval_every = 100
    return c
