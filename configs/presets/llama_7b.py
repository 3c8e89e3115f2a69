"""Llama 7B; Touvron et al. 2023, table 2. 6,738,415,616 parameters."""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.num_layers = 32
    m.d_model = 4096
    m.num_heads = 32
    m.d_ff = 11008
    m.vocab_size = 32000
    m.max_length = 2048
    m.activation = "swiglu"
    m.norm = "rmsnorm"
    m.norm_epsilon = 1e-6
    m.attention_bias = False
    m.attention_output_bias = False
    m.feed_forward_bias = False
    m.tie_embeddings = False
    m.position.kind = "rope"
    m.scan_layers = True
    c.data.source = "text"  # --config.data.path=FILE
    c.data.length = 2048
    c.data.pack = True
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = m.vocab_size
    c.optimizer.b2 = 0.95  # §2.3
    c.optimizer.weight_decay = 0.1
    c.schedule.peak_value = 3e-4
    c.schedule.warmup_steps = 2000
    c.schedule.end_value = 3e-5
    return c
