"""Pairs of sentences by the cosine of their mean-pooled vectors, ours beside `transformers`'s.

    python benchmarks/sentence_embeddings.py FOLDER

FOLDER holds an encoder of sentences of the BERT family, such as all-MiniLM-L6-v2. Half of the pairs
are paraphrases, half say other things in some of the same words. Needs extras `hf` and `oracle`.
"""

import argparse
import sys
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx

from jaxformer.command import OK, guard
from jaxformer.evaluation.report import markdown
from jaxformer.generation.text import encode_sources
from jaxformer.interop import from_huggingface
from jaxformer.models import build

PAIRS = [
    ("My card has not arrived yet.", "I am still waiting for my card to come.", True),
    ("How do I change my password?", "I would like to set a new password.", True),
    ("A dog runs along the beach.", "A puppy is running by the sea.", True),
    ("The meeting was moved to Friday.", "They rescheduled the meeting for Friday.", True),
    ("My card has not arrived yet.", "He has yet to win a game of cards.", False),
    ("How do I change my password?", "How do I change a flat tyre?", False),
    ("A dog runs along the beach.", "The report runs to forty pages.", False),
    ("The meeting was moved to Friday.", "She was moved by the music.", False),
]


def cosine(a_D: np.ndarray, b_D: np.ndarray) -> float:
    return float(a_D @ b_D / np.linalg.norm(a_D) / np.linalg.norm(b_D))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder")
    folder = parser.parse_args(argv).folder
    cfg, params, tokenizer = from_huggingface(folder)
    assert tokenizer is not None
    sentences = sorted({text for a, b, _ in PAIRS for text in (a, b)})
    # Framed and padded by us, and the ids given to both.
    tokens_BL, segments_BL = encode_sources(tokenizer, sentences, add_bos=True, add_eos=True)
    model = nnx.merge(nnx.split(build(cfg))[0], params)
    out = model(jnp.asarray(tokens_BL), jnp.asarray(segments_BL))
    bert = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        ids, mask = (torch.tensor(x, dtype=torch.long) for x in (tokens_BL, segments_BL))
        reference = bert(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    vectors = {}
    for name, hidden_BLD in (("here", np.asarray(out.hidden)), ("transformers", reference)):
        sums_BD = (hidden_BLD * segments_BL[..., None]).sum(1)
        means_BD = sums_BD / segments_BL.sum(1, keepdims=True)
        vectors[name] = dict(zip(sentences, means_BD, strict=True))
    rows = [
        {"sentence": a, "other": b, "paraphrase": "yes" if same else "no"}
        | {name: round(cosine(v[a], v[b]), 4) for name, v in vectors.items()}
        for a, b, same in PAIRS
    ]
    print(markdown(rows))
    off = np.abs(np.asarray(out.hidden) - reference)[segments_BL != 0].max()
    print(f"hidden states differ by at most {off:.1e}")
    return OK


if __name__ == "__main__":
    sys.exit(guard(main, debug=False))
