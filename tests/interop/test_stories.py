"""The flat file of stories260K: greedy decoding gives the text that llama2.c's own test expects."""

import json
import re

import jax
import numpy as np
from flax import nnx

from jaxformer.generation import Greedy, generate
from jaxformer.interop import from_huggingface
from tests.builders import graphdef


def test_golden_text_by_greedy_decoding(shared_data):
    folder = shared_data("stories260K")
    golden = json.loads((folder / "stories260K.golden.json").read_text())
    cfg, params, tokenizer = from_huggingface(folder / "stories260K.bin")
    assert (cfg.num_layers, cfg.d_model, cfg.num_kv_heads, cfg.vocab_size) == (5, 64, 4, 512)
    assert tokenizer is None
    first, *wanted = golden["greedy_ids"]
    model = nnx.merge(graphdef(cfg), params)
    out = generate(
        model,
        np.array([[first]]),
        np.array([1]),
        max_new_tokens=len(wanted),
        sampler=Greedy(),
        key=jax.random.key(0),
        eos_id=-1,
    )
    assert out.tokens[0].tolist() == wanted
    # The file lacks a few pieces: what they may be is left open.
    pieces = {int(i): re.escape(piece) for i, piece in golden["pieces"].items()}
    assert len(set(wanted) - pieces.keys()) == 5
    pattern = "".join(pieces.get(i, "[ a-z]+") for i in out.tokens[0].tolist())
    assert re.fullmatch(pattern, " " + golden["greedy_text"])
