"""Masked language model: loss and accuracy on the hidden tokens of the validation rows."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.evaluators = ("perplexity",)
    c.lengths = ""  # none: this objective has no lengths
    c.num_examples = 0
    c.seed = 0
    c.samples = ConfigDict()
    c.samples.prompts = ()
    c.samples.count = 0  # an encoder continues nothing
    c.samples.max_new_tokens = 0
    c.samples.sampler = "greedy"
    return c
