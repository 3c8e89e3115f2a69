"""Multi30k English to German: BLEU on test_2016_flickr."""

from ml_collections import ConfigDict

from configs.eval import translation


def get_config() -> ConfigDict:
    c = translation.get_config()
    c.translation.source_path = "../shared/data/multi30k/test_2016_flickr.en.gz"
    c.translation.target_path = "../shared/data/multi30k/test_2016_flickr.de.gz"
    return c
