"""Texts that a run continues when a suite asks for samples."""

from typing import Any

import jax
import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.suite import SuiteConfig
from jaxformer.generation.generate import generate
from jaxformer.generation.inputs import room
from jaxformer.generation.sampling import parse_sampler
from jaxformer.generation.text import encode_prompts
from jaxformer.nn.positions.sources import document_limit

FIRST_TOKENS = 8  # of a validation row, as a prompt where there is no other


def find_prompts(
    cfg: RunConfig, tokenizer: Tokenizer, data: Data, suite: SuiteConfig
) -> tuple[np.ndarray, np.ndarray]:
    """tokens_BP, lengths_B of the texts to continue, each `samples.count` times."""
    add_bos, count = cfg.data.add_bos, suite.samples.count
    if count and cfg.model.architecture not in ("decoder", "lstm"):
        what = f"is {count} while model.architecture = {cfg.model.architecture}"
        raise UserError("suite.samples.count", what, "only a decoder continues text: set it to 0")
    if suite.samples.prompts:
        tokens_BP, lengths_B = encode_prompts(tokenizer, suite.samples.prompts, add_bos=add_bos)
    else:
        row = data.validation.row(0, 0)
        real = min(FIRST_TOKENS, int((row["segment_ids"] == row["segment_ids"][0]).sum()))
        real = room(cfg.model, 1, real)  # one fewer than a learned table holds
        tokens_BP, lengths_B = row["tokens"][None, :real], np.array([real], np.int32)
    for text, length in zip(suite.samples.prompts, lengths_B, strict=False):
        if count and room(cfg.model, int(length), 1) < 1:
            what = f"{text!r} has {length} tokens"
            most, field = document_limit(cfg.model)
            mend = f"{field} = {most} leaves no room after it"
            raise UserError("suite.samples.prompts", what, mend)
    return np.repeat(tokens_BP, count, axis=0), np.repeat(lengths_B, count)


def sample(
    model: Any,
    cfg: RunConfig,
    tokenizer: Tokenizer,
    suite: SuiteConfig,
    prompts: tuple[np.ndarray, np.ndarray],
) -> list[str]:
    """Each prompt with its continuation."""
    tokens_BP, lengths_B = prompts
    if not len(lengths_B):
        return []
    out = generate(
        model,
        tokens_BP,
        lengths_B,
        max_new_tokens=room(cfg.model, int(lengths_B.max()), suite.samples.max_new_tokens),
        sampler=parse_sampler(suite.samples.sampler),
        key=jax.random.key(suite.seed),
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        prefix=cfg.objective.kind == "prefix_lm",
    )
    rows = zip(tokens_BP, lengths_B, out.tokens, out.lengths, strict=True)
    return [tokenizer.decode(np.concatenate([p[:n], t[:m]])) for p, n, t, m in rows]
