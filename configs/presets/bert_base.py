"""BERT base, uncased; Devlin et al. 2019 §3. 109,512,762 parameters with the masked-LM head.

There is one segment table less than published (2 · 768: two kinds of sentence in a row), and no
pooler, which belongs to the next-sentence loss; model.head.kind='sequence' has it.
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
    m.vocab_size = 30522
    m.max_length = 512
    m.activation = "gelu_exact"
    m.norm_placement = "post"
    m.norm_epsilon = 1e-12
    m.embedding_norm = True
    m.head.transform = True
    m.head_bias = True
    m.initializer = "bert"
    m.dropout.embedding = 0.1
    m.dropout.attention = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "masked_lm"
    c.data.source = "text"  # --config.data.path=FILE
    c.data.length = 512
    c.data.pack = True
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = m.vocab_size
    c.schedule.kind = "linear"
    c.schedule.peak_value = 1e-4  # App. A.2
    c.schedule.warmup_steps = 10_000
    c.train.batch_size = 256
    c.train.num_steps = 1_000_000
    c.train.num_epochs = 0.0
    return c
