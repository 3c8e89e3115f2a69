"""T5 small, version 1.0; Raffel et al. 2020 §3.1.1. 60,506,624 parameters.

512 of them are the relative position biases: 32 buckets × 8 heads, one set each for encoder and
decoder, shared by their layers.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    m = c.model
    m.architecture = "encoder_decoder"
    m.num_layers = 6
    m.d_model = 512
    m.num_heads = 8
    m.head_dim = 64
    m.d_ff = 2048
    m.vocab_size = 32128
    m.max_length = 512
    m.activation = "relu"
    m.norm = "rmsnorm"
    m.norm_epsilon = 1e-6
    m.attention_bias = False
    m.attention_output_bias = False
    m.feed_forward_bias = False
    m.scale_attention = False
    m.scale_logits = True
    m.position.kind = "t5"
    m.initializer = "t5"
    m.dropout.embedding = 0.1
    m.dropout.attention = 0.1
    m.dropout.feed_forward = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "seq2seq"
    c.data.source = "text"  # --config.data.path=FILE --config.data.target_path=FILE
    c.data.length = 512
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = m.vocab_size
    c.schedule.peak_value = 3e-4  # with AdamW; the paper's optimizer is Adafactor
    return c
