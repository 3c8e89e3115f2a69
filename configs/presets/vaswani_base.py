"""The base Transformer of Vaswani et al. 2017, table 3; 63,082,496 parameters.

Dropout stands where §5.4 has it, on sublayer outputs and embedding sums. torch.nn.Transformer's
defaults are this stack with a norm after each last layer (model.final_norm='true').
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
    m.d_ff = 2048
    m.vocab_size = 37000  # "about 37000 tokens", byte pairs of English and German
    m.max_length = 512
    m.activation = "relu"
    m.norm_placement = "post"
    m.norm_epsilon = 1e-6
    m.position.kind = "sinusoidal"
    m.scale_embeddings = True
    m.initializer = "xavier"
    m.dropout.embedding = 0.1
    m.dropout.residual = 0.1
    c.objective.kind = "seq2seq"
    c.objective.label_smoothing = 0.1
    c.data.source = "text"  # --config.data.path=FILE --config.data.target_path=FILE
    c.data.length = 256
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = m.vocab_size
    c.optimizer.kind = "adam"
    c.optimizer.b2 = 0.98
    c.optimizer.epsilon = 1e-9
    c.optimizer.weight_decay = 0.0
    c.optimizer.clip_norm = 0.0
    c.schedule.kind = "inverse_sqrt"
    c.schedule.peak_value = (m.d_model * 4000) ** -0.5  # §5.3
    c.schedule.warmup_steps = 4000
    c.train.num_steps = 100_000
    c.train.num_epochs = 0.0
    return c
