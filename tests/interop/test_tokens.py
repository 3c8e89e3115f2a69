"""Tokenizers of folders: roles of special tokens, framing once, vocabularies without a json."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from jaxformer.data.tokenizers import byte_symbols
from jaxformer.errors import UserError
from jaxformer.generation.text import encode_prompts
from jaxformer.interop.tokens import read_words, write_words

SYMBOLS = [symbol for _, symbol in sorted(byte_symbols().items())]


def byte_level(special, frame=""):
    """A byte-level tokenizer with special tokens after the bytes; `frame` is a template."""
    backend = tokenizers.Tokenizer(models.BPE({s: i for i, s in enumerate(SYMBOLS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    if frame:
        ids = [(t, backend.token_to_id(t)) for t in special]
        backend.post_processor = processors.TemplateProcessing(single=frame, special_tokens=ids)
    return backend


def save(folder, backend, **files):
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_roles_come_from_the_files_before_names(tmp_path):
    """Qwen's way: padding is what well-known names would take for the end."""
    backend = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    settings = {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}}
    save(tmp_path, backend, tokenizer_config=settings | {"bos_token": None})
    words = read_words(tmp_path, {"eos_token_id": [256, 258], "bos_token_id": 256})
    assert words is not None
    tokenizer = words.tokenizer
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (256, 256, 258)
    assert (words.add_bos, words.add_eos) == (False, False)


def test_ids_of_config_json_where_the_tokenizer_is_silent(tmp_path):
    save(tmp_path, byte_level(["<a>", "<b>"]))
    values = {"pad_token_id": 257, "eos_token_id": 257, "bos_token_id": 256}
    words = read_words(tmp_path, values | {"decoder_start_token_id": 5})
    assert words is not None
    assert (words.tokenizer.pad_id, words.tokenizer.eos_id) == (257, 257)  # pad == eos
    assert words.tokenizer.start_id == words.tokenizer.bos_id == 256
    words = read_words(tmp_path, values | {"decoder_start_token_id": 5, "is_encoder_decoder": True})
    assert words is not None
    assert words.tokenizer.start_id == 5


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("<s> $A </s>", (True, True)),
        ("<s> $A", (True, False)),
        ("$A </s>", (False, True)),
        ("", (False, False)),
    ],
)
def test_texts_are_framed_once(tmp_path, frame, expected):
    save(tmp_path, byte_level(["<s>", "</s>"], frame))
    words = read_words(tmp_path, {})
    assert words is not None
    assert (words.add_bos, words.add_eos) == expected
    tokens_BP, lengths_B = encode_prompts(words.tokenizer, ["ab", "c"], add_bos=words.add_bos)
    assert np.count_nonzero(tokens_BP == 256) == 2 * expected[0]
    assert lengths_B.tolist() == [2 + expected[0], 1 + expected[0]]
    assert not np.any(tokens_BP == 257)


def test_padding_that_is_the_end_token_does_not_end_a_text(tmp_path):
    save(tmp_path, byte_level(["<|endoftext|>"]), tokenizer_config={"pad_token": "<|endoftext|>"})
    words = read_words(tmp_path, {})
    assert words is not None
    tokenizer = words.tokenizer
    assert tokenizer.pad_id == tokenizer.eos_id == tokenizer.bos_id == 256
    assert tokenizer.decode([*tokenizer.encode("hä"), 256, 256]) == "hä"


def test_flags_of_older_files_frame_where_the_template_does_not(tmp_path):
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    save(tmp_path, byte_level(["<s>", "</s>"]), tokenizer_config=settings)
    words = read_words(tmp_path, {})
    assert words is not None
    assert (words.add_bos, words.add_eos) == (True, False)


def test_vocabulary_of_word_pieces(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    words = read_words(tmp_path, {"pad_token_id": 0})
    assert words is not None
    tokenizer = words.tokenizer
    assert tokenizer.encode("The cats.").tolist() == [5, 6, 7, 8]
    assert tokenizer.encode("dog").tolist() == [1]
    ids = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id
    assert ids == (0, 2, 3, 4)
    assert (words.add_bos, words.add_eos) == (True, True)
    (tmp_path / "vocab.txt").write_text("the\ncat\n")
    with pytest.raises(UserError, match=r"vocab.txt: has no \[UNK\]"):
        read_words(tmp_path, {})


def test_vocabulary_and_merges(tmp_path):
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "h": 3, "i": 4, "hi": 5, "Ġ": 6}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh i\n")
    words = read_words(tmp_path, {})
    assert words is not None
    assert words.tokenizer.encode("hi hi").tolist() == [5, 6, 5]
    assert (words.add_bos, words.add_eos) == (True, True)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh\n")
    with pytest.raises(UserError, match=r"merges.txt: cannot be read"):
        read_words(tmp_path, {})


def test_a_folder_without_one_and_with_one_of_another_library(tmp_path):
    assert read_words(tmp_path, {}) is None
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"has spiece.model and no tokenizer.json"):
        read_words(tmp_path, {})


def test_what_is_written_frames_as_training_did(tmp_path):
    backend = byte_level(["<s>", "</s>"])
    save(tmp_path, backend)
    words = read_words(tmp_path, {})
    assert words is not None
    for add_bos, add_eos in ((True, False), (True, True), (False, False)):
        write_words(tmp_path, words.tokenizer, add_bos=add_bos, add_eos=add_eos)
        again = read_words(tmp_path, {})
        assert again is not None
        assert (again.add_bos, again.add_eos) == (add_bos, add_eos)
        assert again.tokenizer.encode("a").tolist() == [SYMBOLS.index("a")]
