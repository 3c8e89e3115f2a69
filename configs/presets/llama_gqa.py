"""Llama 3 8B: grouped-query attention (Ainslie et al. 2023); Grattafiori et al. 2024, table 3.

8,030,261,248 parameters.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.presets import llama_7b


def get_config() -> ConfigDict:
    c: Any = llama_7b.get_config()
    m = c.model
    m.num_kv_heads = 8
    m.d_ff = 14336
    m.vocab_size = 128256
    m.max_length = 8192
    m.norm_epsilon = 1e-5
    m.position.rope.base = 500000.0
    c.data.length = 8192
    c.data.tokenizer.vocab_size = m.vocab_size
    return c
