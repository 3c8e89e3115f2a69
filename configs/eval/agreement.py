"""Agreement language: quality in distribution, verb agreement by number of modifiers, samples."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.evaluators = ("perplexity", "agreement")  # perplexity | exact_match | agreement
    c.lengths = "0:10"  # numbers of modifiers; those too long for a learned table are left out
    c.num_examples = 1000  # sentences for each of them
    c.seed = 0  # of these sentences, apart from those trained on, and of the samples
    c.samples = ConfigDict()
    c.samples.prompts = ("",)  # continued; '' is <s> alone; none: the first validation tokens
    c.samples.count = 10  # for each prompt
    c.samples.max_new_tokens = 40  # fewer where a learned position table ends
    c.samples.sampler = (
        "temperature:1"  # greedy | temperature:T | top_k:K[:T] | top_p:P[:T] | min_p:P[:T]
    )
    return c
