"""SCAN (Lake and Baroni 2018): up to 25 actions, tested on up to 48; for an accelerator.

--config.data.path=FOLDER names the files, and over kinds of positions:

    R=rope+model.position.rope.fraction=0.25
    python sweep.py --config=configs/lengths/scan.py --config.data.path=FOLDER --out=DIR \\
        --axis=model.position.kind=none,t5,alibi,$R,sinusoidal --seeds=3 --lengths=1:48

Kazemnejad et al. 2023 have none and t5 in front (80 %), then alibi (44 %), a quarter of rope (28 %)
and sinusoidal (6 %), from a large model and with a word before each command. Other splits:
--config.data.task.split=length (22 actions in training), simple, addprim_jump (48 actions both).
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.num_layers = 4
    c.model.d_model = 256
    c.model.num_heads = 8
    c.model.max_length = 59  # inputs of the longest test
    c.model.position.kind = "none"
    c.data.source = "task"
    c.data.task.name = "scan"
    c.data.task.split = "length:25"
    c.data.task.max_length = 25  # of the split's training part
    c.data.length = 36
    c.optimizer.weight_decay = 0.05
    c.schedule.kind = "linear"
    c.schedule.peak_value = 3e-4
    c.schedule.warmup_steps = 600
    c.train.num_steps = 10000
    c.train.num_epochs = 0.0
    c.train.eval_every = 2000
    c.train.checkpoint_every = 2000
    return c
