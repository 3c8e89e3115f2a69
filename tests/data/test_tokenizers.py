import json
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from jaxformer.config import TokenizerConfig
from jaxformer.data import tokenizers as module
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer, word_tokenizer
from jaxformer.errors import UserError

TEXT = "To be, or not to be:\r\n\tthat is — the question.\n\n  naïve e\u0301 字 🙂 "
TEXT += "<s>x</s><pad>\0 don't  "
KINDS = ("char", "byte", "word", "bpe")


def make(kind: str, *texts: str, size: int = 300, path: str = "") -> Tokenizer:
    cfg = TokenizerConfig(kind=kind, path=path, vocab_size=size if kind == "bpe" else 0)  # pyright: ignore[reportArgumentType]
    return make_tokenizer(cfg, lambda: texts, lambda: texts)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
@pytest.mark.parametrize("text", [TEXT, "", " ", "\n", "a", "\u2028 \x85 \x1c"])
def test_round_trip_is_exact(kind, text):
    tokenizer = make(kind, TEXT, text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text
    assert not set(ids.tolist()) & {0, 1, 2}  # "<s>" in a text is text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_size(kind):
    tokenizer = make(kind, TEXT)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert [tokenizer.token(i) for i in range(3)] == ["<pad>", "<s>", "</s>"]
    assert tokenizer.token(tokenizer.vocab_size) == ""
    ids = tokenizer.encode("not to")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "not to"
    assert ids.max() < tokenizer.vocab_size
    assert tokenizer.kind == kind


def test_literal_ids():
    assert make("char", "cab\n").encode("a\ncb").tolist() == [4, 3, 6, 5]
    assert make("byte").encode("A\né").tolist() == [3 + 0x41, 3 + 0x0A, 3 + 0xC3, 3 + 0xA9]
    assert make("byte").vocab_size == 259
    assert make("word", "b a  b\nc").encode(" c\ta ").tolist() == [5, 3]
    assert word_tokenizer(["b", "a"]).encode("a b").tolist() == [4, 3]


def test_special_tokens_are_no_words():
    """Other kinds spell them; a vocabulary of words has no other id for them."""
    for text in ("a </s> <s> b", "<pad>"):
        with pytest.raises(UserError, match="words that the tokenizer does not know: '<"):
            make("word", text, "a b").encode(text)
    with pytest.raises(UserError, match="does not know: '<s>', leave"):
        word_tokenizer(["b", "a"]).encode("<s> a b")


def test_word_normalises_white_space():
    tokenizer = make("word", TEXT)
    assert tokenizer.decode(tokenizer.encode(" To  be,\n")) == "To be,"


def test_bpe_merges_and_may_end_below_the_size_asked():
    text = "low lower lowest " * 20
    tokenizer = make("bpe", text, size=262)
    assert tokenizer.vocab_size == 262
    assert len(tokenizer.encode(text)) < len(text)
    few = make("bpe", "aaab", size=1000)
    assert few.vocab_size < 300
    assert few.kind == "bpe"
    assert make("bpe", "ab", size=1000).kind == "bpe"  # no merge at all: still no byte tokenizer
    assert few.decode(few.encode("zebra 🙂")) == "zebra 🙂"  # bytes know everything


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_look_up_table_gives_the_ids_of_the_saved_file(kind, tmp_path):
    tokenizer = make(kind, TEXT)
    tokenizer.save(tmp_path / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.encode_special_tokens = True
    assert backend.encode(TEXT).ids == tokenizer.encode(TEXT).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind, tmp_path):
    tokenizer = make(kind, TEXT)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.kind == kind
    assert loaded.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_fingerprints_differ():
    made = [make(kind, TEXT) for kind in KINDS] + [make("char", "other"), make("bpe", "x" * 99)]
    assert len({t.fingerprint for t in made}) == len(made)


def test_training_is_the_same_in_another_process():
    code = (
        "from tests.data.test_tokenizers import TEXT, make\n"
        "print(*[make(k, TEXT * 3, 'low lower lowest' * 9).fingerprint for k in ('bpe', 'word')])"
    )
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert other == [make(k, TEXT * 3, "low lower lowest" * 9).fingerprint for k in ("bpe", "word")]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("char", "abxay🙂", "characters .* 'x', 'y', '🙂',"),
        ("char", "a\u0301", "characters"),
        ("char", "123456789", "'1', '2', '3', '4', '5', …"),
        ("word", "a new word a", "words .* 'new', 'word',"),
        ("byte", "\ud800", "lone surrogate"),
    ],
)
def test_unknown_symbols_are_named(kind, text, message):
    tokenizer = make(kind, "a b")
    with pytest.raises(UserError, match=message):
        tokenizer.encode(text)


def test_word_list_with_unknown_token_uses_it():
    tokenizer = make("word", "a <unk> b")
    assert tokenizer.encode("a zebra").tolist() == tokenizer.encode("a <unk>").tolist()


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_long_texts_are_cut_where_it_changes_nothing(kind, monkeypatch):
    text = "".join(f"line {i}\n" + "\n" * (i % 3) + " " * (i % 4) for i in range(400))
    tokenizer = make(kind, text)
    monkeypatch.setattr(module, "PIECE", 10**9)
    whole, again = tokenizer.encode(text), make(kind, text)
    monkeypatch.setattr(module, "PIECE", 50)
    parts = module.pieces(text)
    assert len(parts) > 10
    assert "".join(parts) == text
    assert tokenizer.encode(text).tolist() == whole.tolist()
    assert make(kind, text).fingerprint == again.fingerprint


def test_batch_is_the_same_as_one_by_one():
    tokenizer = make("bpe", TEXT)
    texts = [TEXT, "", "to be", TEXT * 2]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == tokenizer.encode(text).tolist()


def foreign(tmp_path, vocab: dict[str, int], special: list[str], **model) -> str:
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, **model))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(special)
    backend.enable_truncation(4)
    backend.enable_padding(length=9, pad_token=special[0])
    path = tmp_path / "foreign.json"
    backend.save(str(path))
    return str(path)


def test_foreign_file(tmp_path, caplog):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocab = {w: i for i, w in enumerate([*special, "a", "b"])}
    path = foreign(tmp_path, vocab, special, unk_token="[UNK]")
    tokenizer = make("file", path=path)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 2, 3)
    # Neither cut at 4 nor padded to 9, as the file asks; no special tokens.
    assert tokenizer.encode("a b a b a zebra").tolist() == [4, 5, 4, 5, 4, 1]
    assert tokenizer.kind == "file"
    assert not caplog.records


def test_foreign_file_without_some_special_tokens(tmp_path, caplog):
    path = foreign(tmp_path, {"<|endoftext|>": 0, "a": 1}, ["<|endoftext|>"])
    tokenizer = make("file", path=path)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 0, 0)
    assert [r.getMessage() for r in caplog.records] == [f"{path} has no token for: padding"]
    path = foreign(tmp_path, {"<pad>": 0, "a": 1}, ["<pad>"])
    tokenizer = make("file", path=path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (-1, -1)
    with pytest.raises(UserError, match=r"words .* 'zebra'"):
        tokenizer.encode("a zebra a")


def test_bpe_that_would_drop_unknown_characters_is_refused(tmp_path):
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    assert tokenizer.encode("abba").tolist() == [0, 1, 1, 0]
    with pytest.raises(UserError, match=r"characters .* 'c', 'd'"):
        tokenizer.encode("abcd")


def test_files_that_are_no_tokenizer(tmp_path):
    with pytest.raises(UserError, match="is not a file"):
        Tokenizer.load(tmp_path / "absent.json")
    (tmp_path / "other.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(UserError, match=r"other\.json: is not a tokenizer\.json"):
        Tokenizer.load(tmp_path / "other.json")


@pytest.mark.parametrize("kind", ["char", "byte", "word"])
def test_digits_are_single_tokens(kind):
    tokenizer = make(kind, "1 + 2 = 3 a1b")
    written = sorted(tokenizer.token(i) for i in tokenizer.digits())
    assert written == (list("0123456789") if kind == "byte" else list("123"))


def test_numbers_that_are_one_token_cannot_be_counted_by_digit():
    with pytest.raises(UserError, match=r"counts digits, but '12' is one token"):
        make("word", "1 + 2 = 12").digits()
    with pytest.raises(UserError, match=r"counts digits, but 'Ġ?1[12]?' is one token"):
        make("bpe", "11 12 11 12 11 12 11 12 " * 9).digits()
    with pytest.raises(UserError, match="has no digits"):
        make("char", "abc").digits()
