"""Copies of up to 12 distinct symbols (Huang et al. 2025), tested on up to 24:

    python sweep.py --config=configs/lengths/copy.py --seeds=5 --out=DIR --lengths=2:24:2,13 \\
        --axis=model.position.kind=rope,none,alibi,learned+model.position.source.kind=offset

Seen with five seeds: rope alone learns it with every seed, and fails somewhere between 13 and 20
symbols; without positions or with alibi it is not learned in so few steps; with learned positions
and an offset two seeds of five learn it, and those have 97 % or more at 24: docs/lab_log.md.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.num_heads = 1
    c.model.max_length = 50  # inputs of the longest test
    c.model.norm = "rmsnorm"
    c.model.tie_embeddings = False
    c.model.position.kind = "rope"
    c.data.source = "task"
    c.data.task.name = "copy_unique"
    c.data.task.max_length = 12
    c.data.length = 26
    c.optimizer.b2 = 0.98
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 125
    c.schedule.end_value = 1e-4
    c.train.num_steps = 2500
    c.train.num_epochs = 0.0
    c.train.batch_size = 32
    c.train.eval_every = 0
    c.train.checkpoint_every = 0
    return c
