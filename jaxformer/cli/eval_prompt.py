"""eval.py --prompt: texts continued, or sources answered, on the terminal."""

import sys
from collections.abc import Sequence
from typing import Any

import jax

from jaxformer.command import FLAGS, OK
from jaxformer.distributed import is_first
from jaxformer.errors import UserError
from jaxformer.evaluation.schemes import Scheme, make_variant
from jaxformer.generation import (
    Sampler,
    answer,
    continue_text,
    parse_sampler,
    stream_answer,
    stream_text,
)
from jaxformer.run import Run


def one_variant(run: Run, schemes: Sequence[Scheme]) -> Any:
    """The model under the one scheme that texts are generated under."""
    if len(schemes) > 1:
        mend = "a prompt is continued under one of them: give that"
        raise UserError("positions", f"has {len(schemes)} schemes", mend)
    if run.config.objective.kind == "span_corruption":
        mend = "evaluate it by a suite: texts are no sources that have a target"
        raise UserError("objective.kind", "is span_corruption, which continues nothing", mend)
    return make_variant(schemes[0], run.model, run.config).model


def sampler_of(run: Run) -> tuple[Sampler, str]:
    """--sampler, and how it is written."""
    text = FLAGS.sampler or ("greedy" if run.config.objective.has_pairs else "top_p:0.9")
    return parse_sampler(text), text


def streams() -> bool:
    """--stream, or else whether one prompt is continued on a terminal."""
    if FLAGS.stream and len(FLAGS.prompt) > 1:
        what = f"is given for {len(FLAGS.prompt)} prompts"
        raise UserError("--stream", what, "they are continued side by side: leave it out")
    alone = len(FLAGS.prompt) == 1
    return alone and (sys.stdout.isatty() if FLAGS.stream is None else FLAGS.stream)


def main(run: Run, schemes: tuple[Scheme, ...]) -> int:
    """Prints each --prompt with its continuation, or the target of each source; one scheme."""
    cfg, live = run.config, streams()
    how: dict[str, Any] = {
        "max_new_tokens": FLAGS.max_new_tokens,
        "sampler": sampler_of(run)[0],
        "key": jax.random.key(FLAGS.seed),
        "add_bos": cfg.data.add_bos,
        "repetition_penalty": FLAGS.repetition_penalty,
    }
    if cfg.objective.has_pairs:
        how["add_eos"] = cfg.data.add_eos
        one, several = stream_answer, answer
    else:
        how["prefix"] = cfg.objective.kind == "prefix_lm"
        one, several = stream_text, continue_text
    try:
        model = one_variant(run, schemes)
        if live:
            parts = one(model, run.tokenizer, FLAGS.prompt[0], **how)
        else:
            parts = ["\n---\n".join(several(model, run.tokenizer, FLAGS.prompt, **how))]
        for part in parts:
            if is_first():
                print(part, end="", flush=True)
    except UserError as error:
        where = "--prompt" if error.where in ("text", "prompt", "source") else error.where
        raise UserError(where, error.what, error.mend)
    if is_first():
        print()
    return OK
