"""BART base; Lewis et al. 2020. 139,417,344 parameters.

Published: 139,420,416. Its two position tables have 1,026 rows, of which the first two are never
looked up (positions start at 2): 2 · 2 · 768 parameters more.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.architecture = "encoder_decoder"
    m.num_layers = 6
    m.d_model = 768
    m.num_heads = 12
    m.d_ff = 3072
    m.vocab_size = 50265
    m.max_length = 1024
    m.activation = "gelu_exact"
    m.norm_placement = "post"
    m.embedding_norm = True
    m.initializer = "bert"
    m.dropout.embedding = 0.1
    m.dropout.attention = 0.1
    m.dropout.feed_forward = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "seq2seq"
    c.data.source = "text"  # --config.data.path=FILE --config.data.target_path=FILE
    c.data.length = 1024
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = m.vocab_size
    c.schedule.peak_value = 3e-4
    return c
