"""A task of data.task by length: exact match in three readings, token accuracy, loss; no samples.

--lengths replaces the lengths: 1:24 are those from 1 to 24.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.evaluators = ("protocol",)
    c.lengths = "4:48:4"  # those that the task or a learned table does not have are left out
    c.num_examples = 1000  # for each of them
    c.seed = 0  # of these examples: all runs have the same
    c.samples = ConfigDict()
    c.samples.prompts = ()
    c.samples.count = 0
    c.samples.max_new_tokens = 0
    c.samples.sampler = "greedy"
    return c
