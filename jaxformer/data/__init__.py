"""Data is a function: every batch of a run follows from (text, config, seed, step)."""

from jaxformer.data.describe import describe
from jaxformer.data.examples import open_file
from jaxformer.data.open import Data, open_data, resolve

__all__ = ["Data", "describe", "open_data", "open_file", "resolve"]
