"""The agreement language, built in: base.py's shape and budget. `make demo` runs it."""

from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c: Any = base.get_config()
    c.data.length = 19  # inputs of the longest training sentence, which has 20 tokens
    return c
