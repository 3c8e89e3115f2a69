"""A text read in windows of 64 to 512 tokens: perplexity by context length, no samples."""

from typing import Any

from ml_collections import ConfigDict

from configs.eval import text


def get_config() -> ConfigDict:
    c: Any = text.get_config()
    c.lengths = "64,128,256,512"
    c.num_examples = 0  # of a task: a text is read whole
    c.samples.count = 0
    return c
