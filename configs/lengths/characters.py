"""Language models of characters, read in longer windows than they were trained on.

--config.data.path=FILE names the text; on tiny Shakespeare, over kinds of positions:

    T5=t5,t5+model.position.t5.max_distance=32
    python sweep.py --config=configs/lengths/characters.py --config.data.path=FILE --out=DIR \\
        --axis=model.position.kind=none,sinusoidal,rope,alibi,$T5 --seeds=3 --suite=text_lengths
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.max_length = 64
    c.model.norm = "rmsnorm"
    c.model.tie_embeddings = False
    c.model.position.kind = "alibi"
    c.model.position.sinusoidal.scale = 0.02 * 2**0.5  # … sines as large as the embeddings
    c.data.source = "text"
    c.data.length = 64
    c.data.pack = True
    c.data.tokenizer.kind = "char"
    c.optimizer.b2 = 0.98
    c.schedule.peak_value = 2e-3
    c.schedule.warmup_steps = 40
    c.schedule.end_value = 1e-4
    c.train.num_steps = 800
    c.train.num_epochs = 0.0
    c.train.batch_size = 16
    c.train.eval_every = 0
    return c
