"""Intents of bank customers from a sentence encoder, --config=configs/banking77_minilm.py:FOLDER.

FOLDER holds all-MiniLM-L6-v2, or another encoder that configs/published.py reads; all of it is
trained, under a new head on the mean of its vectors. --config.data.path=train.csv;
--config.data.validation_path=test.csv takes all of it for training.
"""

from ml_collections import ConfigDict

from configs import published


def get_config(folder: str) -> ConfigDict:
    c = published.get_config(f"{folder}@sequence")
    c.model.head.pooling = "mean"
    c.data.source = "csv"
    c.data.label_field = "category"
    c.data.length = 32  # 6 of 100 texts are longer and cut
    c.schedule.peak_value = 2e-4
    c.schedule.warmup_steps = 150
    c.train.num_epochs = 5.0
    c.train.batch_size = 32
    return c
