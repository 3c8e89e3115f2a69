"""Sampling, generation and beam search."""

from jaxformer.generation.beam import Beams, LengthPenalty, beam_search
from jaxformer.generation.generate import Generated, generate, stream
from jaxformer.generation.sampling import (
    Greedy,
    MinP,
    Sampler,
    Temperature,
    TopK,
    TopP,
    parse_sampler,
)
from jaxformer.generation.scoring import Scores, score, score_texts
from jaxformer.generation.streaming import stream_answer, stream_text
from jaxformer.generation.text import answer, continue_text, translate

__all__ = [
    "Beams",
    "Generated",
    "Greedy",
    "LengthPenalty",
    "MinP",
    "Sampler",
    "Scores",
    "Temperature",
    "TopK",
    "TopP",
    "answer",
    "beam_search",
    "continue_text",
    "generate",
    "parse_sampler",
    "score",
    "score_texts",
    "stream",
    "stream_answer",
    "stream_text",
    "translate",
]
