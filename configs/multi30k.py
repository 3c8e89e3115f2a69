"""English to German, 29,000 captions of Multi30k (Elliott et al. 2016); 7.6 M parameters, Pre-LN.

--config.data.path=train.en.gz --config.data.target_path=train.de.gz
--config.data.validation_path=val.en.gz --config.data.validation_target_path=val.de.gz
"""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.model.architecture = "encoder_decoder"
    c.model.num_layers = 3
    c.model.d_model = 256
    c.model.num_heads = 4
    c.model.d_ff = 1024
    c.model.max_length = 128
    c.model.activation = "relu"
    c.model.position.kind = "sinusoidal"
    c.model.scale_embeddings = True
    c.model.initializer = "xavier"
    c.model.dropout.embedding = 0.1
    c.model.dropout.attention = 0.1
    c.model.dropout.feed_forward = 0.1
    c.model.dropout.residual = 0.1
    c.objective.kind = "seq2seq"
    c.objective.label_smoothing = 0.1
    c.data.source = "text"
    c.data.length = 64
    c.data.add_bos = False
    c.data.pack = True  # four pairs a row; a pair a row would be two thirds padding
    c.data.tokenizer.kind = "bpe"
    c.data.tokenizer.vocab_size = 8000
    c.optimizer.kind = "adam"
    c.optimizer.b2 = 0.98
    c.optimizer.epsilon = 1e-9
    c.optimizer.weight_decay = 0.0
    c.schedule.peak_value = 1e-3
    c.schedule.warmup_steps = 400
    c.train.num_epochs = 16.0
    c.train.batch_size = 32
    c.train.eval_every = 500
    c.train.keep_best = 1
    return c
