"""Sampling and generation."""

from jaxformer.generation.generate import Generated, generate
from jaxformer.generation.sampling import (
    Greedy,
    MinP,
    Sampler,
    Temperature,
    TopK,
    TopP,
    parse_sampler,
)
from jaxformer.generation.text import continue_text

__all__ = [
    "Generated",
    "Greedy",
    "MinP",
    "Sampler",
    "Temperature",
    "TopK",
    "TopP",
    "continue_text",
    "generate",
    "parse_sampler",
]
