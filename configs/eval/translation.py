"""Translation: perplexity of the validation pairs, and BLEU of greedy and of beam search."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.evaluators = ("perplexity", "bleu")  # perplexity | exact_match | bleu
    c.lengths = ""  # none: this objective has no lengths
    c.num_examples = 0  # for each length
    c.seed = 0
    c.translation = ConfigDict()
    c.translation.source_path = ""  # a sentence a line, .gz too: '' = the validation pairs
    c.translation.target_path = ""  # their translations
    c.translation.beam_size = 4  # besides greedy: 1 = greedy alone
    c.translation.length_penalty = "gnmt"  # gnmt (5+n)/6 | notes (5+n)/5 | power n, for n tokens …
    c.translation.alpha = 0.6  # … to this power divides a log-probability: 0 = no penalty
    c.translation.extra_tokens = 50  # most that a translation is longer than its source
    c.samples = ConfigDict()
    c.samples.prompts = ()
    c.samples.count = 0  # an encoder-decoder continues no text
    c.samples.max_new_tokens = 0
    c.samples.sampler = "greedy"
    return c
