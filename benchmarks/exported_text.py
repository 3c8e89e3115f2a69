"""A run's text beside that of `transformers`, which loads what `to_huggingface` wrote of the run.

    python benchmarks/exported_text.py WORKDIR FOLDER PROMPT [PROMPT …] [--tokens=60]

Greedy on both sides, each with its own tokenizer; an encoder-decoder answers the prompts. FOLDER is
made. The status is 1 where a text differs. Needs the extras `hf` and `oracle`.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax
import torch
import transformers

from jaxformer import Run, load
from jaxformer.command import OK, guard
from jaxformer.evaluation.report import markdown
from jaxformer.generation import Greedy
from jaxformer.generation.text import answer, continue_text
from jaxformer.interop import to_huggingface
from jaxformer.nn.positions.sources import document_limit

DIFFERENT = 1


def ours(run: Run, prompts: Sequence[str], tokens: int) -> list[str]:
    how: dict[str, Any] = {"max_new_tokens": tokens, "sampler": Greedy(), "key": jax.random.key(0)}
    how["add_bos"] = run.config.data.add_bos
    if run.config.model.architecture == "encoder_decoder":
        how["add_eos"] = run.config.data.add_eos
        return answer(run.model, run.tokenizer, prompts, **how)
    # One at a time: a table of positions has room for what is left after the longest.
    return [continue_text(run.model, run.tokenizer, [prompt], **how)[0] for prompt in prompts]


def theirs(folder: str, prompts: Sequence[str], tokens: int, end: int) -> list[tuple[str, int]]:
    """Each text and how many tokens were generated for it; `end` is that of the positions, or 0."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    answers = config.is_encoder_decoder
    kind = transformers.AutoModelForSeq2SeqLM if answers else transformers.AutoModelForCausalLM
    model: Any = kind.from_pretrained(folder).eval()
    found = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        given = 1 if answers else ids.shape[1]
        most = min(tokens, end - given) if end else tokens
        how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "num_beams": 1}
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=most, **how)[0]
        text = tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        found.append((text, len(out) - given))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("workdir")
    parser.add_argument("folder", help="to be made")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--tokens", type=int, default=60)
    flags = parser.parse_args(argv)
    run = load(flags.workdir)
    family = to_huggingface(run, flags.folder)
    print(f"{flags.workdir}, step {run.step}: written as {family}\n")
    here = ours(run, flags.prompts, flags.tokens)
    end = document_limit(run.config.model).tokens
    there = theirs(flags.folder, flags.prompts, flags.tokens, end)
    names = ("prompt", "tokens", "the same", "text of transformers")
    rows: list[dict[str, Any]] = [
        dict(zip(names, (prompt, tokens, "yes" if mine == text else "NO", repr(text)), strict=True))
        for prompt, mine, (text, tokens) in zip(flags.prompts, here, there, strict=True)
    ]
    print(markdown(rows))
    wrong = [mine for mine, (text, _) in zip(here, there, strict=True) if mine != text]
    for mine in wrong:
        print(f"here: {mine!r}")
    return DIFFERENT if wrong else OK


if __name__ == "__main__":
    sys.exit(guard(main, debug=False))
