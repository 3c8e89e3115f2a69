"""Data is a function: every batch of a run follows from (text, config, seed, step)."""

from jaxformer.data.describe import describe
from jaxformer.data.examples import open_file
from jaxformer.data.open import (
    Data,
    changed_sources,
    open_data,
    resolve,
    source_fingerprints,
)

__all__ = [
    "Data",
    "changed_sources",
    "describe",
    "open_data",
    "open_file",
    "resolve",
    "source_fingerprints",
]
