"""Any text: perplexity on the validation rows, and samples."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.evaluators = ("perplexity",)  # perplexity | exact_match
    c.lengths = ""  # tokens of context, e.g. "64,128:512:128"; those too long are left out
    c.num_examples = 0  # of a task: a text is read whole, or eval.max_rows · data.length tokens
    c.seed = 0  # of the samples
    c.samples = ConfigDict()
    c.samples.prompts = ()  # none: the first tokens of the validation data
    c.samples.count = 3  # for each prompt
    c.samples.max_new_tokens = 200  # fewer where a learned position table ends
    c.samples.sampler = (
        "top_p:0.95:0.8"  # greedy | temperature:T | top_k:K[:T] | top_p:P[:T] | min_p:P[:T]
    )
    return c
