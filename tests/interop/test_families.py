"""Every family against `transformers`: the same logits and texts, in and out."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.generation import Greedy, generate
from jaxformer.interop import from_huggingface, to_huggingface
from jaxformer.interop.settings import run_config
from jaxformer.run import Run
from tests.builders import graphdef, leaves

REASON = "the extras `hf` and `oracle` have safetensors, torch and transformers"
for name in ("safetensors", "torch", "transformers"):
    pytest.importorskip(name, reason=REASON)

import torch  # noqa: E402
import transformers  # noqa: E402

from tests.interop.families import CASES, FIRST, LENGTHS, VOCAB, make_theirs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and transformers
NEW = 32
TOKENIZER = word_tokenizer([f"w{i}" for i in range(VOCAB - 3)])


def first_and_slow():
    for family, cases in CASES.items():
        for number, case in enumerate(cases):
            marks = [pytest.mark.slow] if number else []
            yield pytest.param(family, *case, id=f"{family}-{number}", marks=marks)


def draw(seed, pad):
    """Ragged rows [B, L], right-padded, and what is real of them."""
    rng = np.random.default_rng(seed)
    real_BL = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    tokens_BL = rng.integers(FIRST, VOCAB, real_BL.shape)
    return np.where(real_BL, tokens_BL, pad).astype(np.int32), real_BL


def batch_of(config):
    """Arrays of a batch as `transformers` takes them, and which logits count."""
    tokens_BL, real_BL = draw(0, config.pad_token_id or 0)
    inputs = {"input_ids": tokens_BL, "attention_mask": real_BL}
    if not config.is_encoder_decoder:
        return inputs, real_BL
    targets_BL, real_BL = draw(1, config.pad_token_id or 0)
    return inputs | {"decoder_input_ids": targets_BL, "decoder_attention_mask": real_BL}, real_BL


def their_logits(model, inputs):
    as_tensors = {n: torch.tensor(x, dtype=torch.long) for n, x in inputs.items()}
    with torch.no_grad():
        out = model(**as_tensors)
    return (out.logits if "logits" in out else out.last_hidden_state).numpy()


@functools.partial(jax.jit, static_argnums=0)
def run(definition, params, inputs):
    model = nnx.merge(definition, params)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    if "decoder_input_ids" in inputs:
        masks = mask, inputs["decoder_attention_mask"]
        return model(ids, inputs["decoder_input_ids"], *(m.astype(np.int32) for m in masks))
    return model(ids, mask.astype(np.int32))


def our_logits(cfg, params, inputs, hidden):
    out = run(graphdef(cfg), params, inputs)
    return np.asarray(out.hidden if hidden else out.logits)


def their_texts(model, inputs):
    """What each row is continued with, alone and so without padding."""
    how = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    how["use_cache"] = False  # its cache of a T5 has as many layers as the encoder
    start = getattr(model.config, "decoder_start_token_id", None)
    model.generation_config = transformers.GenerationConfig(**how, decoder_start_token_id=start)
    texts = []
    for row, length in enumerate(LENGTHS):
        ids = torch.tensor(inputs["input_ids"][row : row + 1, :length], dtype=torch.long)
        out = model.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist()
        texts.append(out[1:] if model.config.is_encoder_decoder else out[length:])
    return np.array(texts)


def our_texts(cfg, params, inputs, start):
    how = {"max_new_tokens": NEW, "sampler": Greedy(), "key": jax.random.key(0), "eos_id": -1}
    model = nnx.merge(graphdef(cfg), params)
    if cfg.architecture == "decoder":
        return generate(model, inputs["input_ids"], np.array(LENGTHS), **how).tokens
    segments = inputs["attention_mask"].astype(np.int32)
    source = {"source_BS": inputs["input_ids"], "source_segment_ids": segments}
    return generate(model, **source, **how, bos_id=start).tokens


def as_run(cfg, params, pad):
    """What `to_huggingface` takes, with any tokenizer."""
    config = run_config(cfg, add_bos=pad != TOKENIZER.bos_id, add_eos=False)
    tokenizer = TOKENIZER
    if pad is not None:
        tokenizer = type(TOKENIZER)(TOKENIZER._backend, {"pad": pad})
    return Run(nnx.merge(graphdef(cfg), params), tokenizer, config, 0, "")


def varied(kind, fields):
    """A model, and its greedy texts if it writes any: the first whose texts have three words."""
    for seed in range(20):
        theirs = make_theirs(kind, fields, seed)
        if kind.startswith(("Bert", "Roberta")):
            return theirs, None
        texts = their_texts(theirs, batch_of(theirs.config)[0])
        if len(np.unique(texts)) > 2:
            return theirs, texts
    raise AssertionError("no model writes more than two words")


@pytest.mark.parametrize(("family", "kind", "fields"), list(first_and_slow()))
def test_same_logits_and_texts_in_and_out(family, kind, fields, tmp_path):
    theirs, texts = varied(kind, fields)
    theirs.save_pretrained(tmp_path / "theirs")
    cfg, params, tokenizer = from_huggingface(tmp_path / "theirs")
    assert tokenizer is None
    inputs, real_BL = batch_of(theirs.config)
    bare = kind == "BertModel"
    wanted, found = their_logits(theirs, inputs), our_logits(cfg, params, inputs, bare)
    assert np.abs(wanted).max() > 0.3
    keep = real_BL if wanted.ndim == 3 else slice(None)
    np.testing.assert_allclose(found[keep], wanted[keep], atol=1e-4, rtol=0)
    if cfg.architecture != "encoder":
        start = getattr(theirs.config, "decoder_start_token_id", None)
        ours = our_texts(cfg, params, inputs, start)
        np.testing.assert_array_equal(ours, texts)
    asked = "t5" if family == "t5_v1_1" else family
    wrote = to_huggingface(
        as_run(cfg, params, theirs.config.pad_token_id), tmp_path / "ours", family=asked
    )
    assert wrote == asked
    again = type(theirs).from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    assert again.dtype == torch.float32
    back = their_logits(again, inputs)
    np.testing.assert_allclose(back[keep], wanted[keep], atol=1e-5, rtol=0)
    cfg_again, params_again, _ = from_huggingface(tmp_path / "ours")
    assert dataclasses.replace(cfg_again, dropout=cfg.dropout) == cfg
    first, second = leaves(params), leaves(params_again)
    assert first.keys() == second.keys()
    for path, x in first.items():
        np.testing.assert_array_equal(second[path], x, err_msg=path)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == asked
