"""ViT-B/16 of 224 × 224 images; Dosovitskiy et al. 2021 table 1. 86,567,656 parameters at 1,000
classes (the published 86.6 M), with one linear layer for a head, as where it is fine-tuned.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.architecture = "encoder"
    m.num_layers = 12
    m.d_model = 768
    m.num_heads = 12
    m.d_ff = 3072
    m.max_length = 197  # 14 · 14 patches and the class token
    m.activation = "gelu_exact"
    m.norm_epsilon = 1e-6
    m.initializer = "bert"
    m.patches.image_size = 224
    m.patches.patch_size = 16
    m.head.kind = "sequence"
    m.head.pooler = False
    m.head.num_classes = 1000
    m.dropout.embedding = 0.1  # table 3: ImageNet from scratch
    m.dropout.feed_forward = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "sequence_classification"
    c.data.source = "images"  # --config.data.path=FILE.npz
    c.data.length = 197
    c.optimizer.weight_decay = 0.3
    c.schedule.peak_value = 3e-3
    c.schedule.warmup_steps = 10_000
    c.train.batch_size = 4096
    c.train.num_epochs = 300.0
    return c
