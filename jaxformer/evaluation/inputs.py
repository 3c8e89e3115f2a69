"""What a suite measures on a run: evaluators, examples by length, prompts, sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.errors import UserError
from jaxformer.evaluation.coverage import Coverage
from jaxformer.evaluation.evaluators import EVALUATORS, Evaluator
from jaxformer.evaluation.lengths import Examples, draw_lengths, parse_lengths
from jaxformer.evaluation.samples import find_prompts
from jaxformer.evaluation.suite import SuiteConfig
from jaxformer.evaluation.translation import BLEU, Pairs, check_translates, find_pairs
from jaxformer.evaluation.windows import ByPlace, cut_lengths


class Inputs(NamedTuple):
    """What is evaluated: lengths asked for, examples of those that fit, prompts, sentences."""

    lengths: tuple[int, ...]
    examples: Sequence[Examples]
    prompts: tuple[np.ndarray, np.ndarray]
    pairs: Pairs | None


def read_inputs(
    cfg: RunConfig, data: Data, suite: SuiteConfig, lengths: tuple[int, ...] = ()
) -> Inputs:
    """What a suite evaluates a run on; needs no model. Raises UserError for what cannot be."""
    asked = tuple(sorted(lengths or (parse_lengths(suite.lengths) if suite.lengths else ())))
    drawn = _draw(cfg, data, suite, asked, strict=bool(lengths))
    prompts = find_prompts(cfg, data.tokenizer, data, suite)
    return Inputs(asked, drawn, prompts, _pairs(cfg, data, suite))


def length_evaluators(cfg: RunConfig, data: Data, suite: SuiteConfig) -> tuple[Evaluator, ...]:
    """What is measured at each length."""
    more = (Coverage(cfg),) if data.task else (ByPlace(), Coverage(cfg))
    return (*named_evaluators(suite), *more)


def named_evaluators(suite: SuiteConfig) -> tuple[Evaluator, ...]:
    """The evaluators of a suite, BLEU apart."""
    return tuple(EVALUATORS[name] for name in suite.evaluators if name != BLEU)


def _draw(
    cfg: RunConfig, data: Data, suite: SuiteConfig, lengths: tuple[int, ...], strict: bool
) -> Sequence[Examples]:
    """Examples by length; refuses what this run's data does not have."""
    if data.task is None:
        for name in suite.evaluators:
            if name != BLEU and EVALUATORS[name].needs_task:
                what = f"has {name}, but data.source = {cfg.data.source} is no task"
                raise UserError("suite.evaluators", what, "choose another suite")
        return cut_lengths(data, cfg, lengths, strict=strict) if lengths else ()
    count = suite.num_examples or 1000  # a suite without lengths of its own need not say
    return draw_lengths(data.task, cfg, lengths, num_examples=count, seed=suite.seed, strict=strict)


def _pairs(cfg: RunConfig, data: Data, suite: SuiteConfig) -> Pairs | None:
    """What is to be translated, if anything."""
    if BLEU not in suite.evaluators:
        return None
    check_translates(cfg)
    return find_pairs(suite.translation, data.tokenizer, data.validation, cfg.eval.max_rows)
