"""One tokenizer class over the `tokenizers` library; every kind is saved as a tokenizer.json.

Those made here number <pad> 0, <s> 1, </s> 2. Text that happens to contain "<s>" is text: special
tokens are placed by the data pipeline, never read from the text.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers

from jaxformer.errors import UserError

SPECIAL = ["<pad>", "<s>", "</s>"]
MASK = "<mask>"  # after these, in tokenizers made for a masked language model
SENTINEL = "<extra_id_{}>"  # T5's names of what stands for a hidden span, from 0 on
PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")
BOS_NAMES = ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>")
EOS_NAMES = ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>")
MASK_NAMES = (MASK, "[MASK]")
JOINED_DIGITS = re.compile(r"[0-9]{2,}|[ĠĊ▁ ][0-9]+")  # with a space before, as BPE may have it
PIECE = 2**18  # characters: longer texts go to the library in pieces, which bounds its memory
PIECES = 64  # pieces encoded at a time


class Tokenizer:
    """Text to ids and back.

    `pad_id`, `bos_id`, `eos_id`, `mask_id` are found by name and -1 where there is no such token,
    but `pad_id` falls back to 0 (padding is told by segment ids, never by its token). `start_id`
    begins the targets of an encoder-decoder: `bos_id`. Ids in `special`, by role (pad, bos, eos,
    mask, start), come before names.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: Mapping[str, int] | None = None):
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        spec = json.loads(backend.to_str())
        canonical = json.dumps(spec, sort_keys=True, ensure_ascii=True)
        self.fingerprint = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        self.kind = _kind(spec)
        self.vocab_size = backend.get_vocab_size()
        names = {"pad": PAD_NAMES, "bos": BOS_NAMES, "eos": EOS_NAMES, "mask": MASK_NAMES}
        ids = {role: find_token(backend, tokens) for role, tokens in names.items()}
        ids |= special or {}
        self.has_pad = ids["pad"] >= 0
        self.pad_id, self.bos_id = max(0, ids["pad"]), ids["bos"]
        self.eos_id, self.mask_id = ids["eos"], ids["mask"]
        self.start_id = ids.get("start", self.bos_id)
        self._backend = backend
        self._table = _table(self.kind, backend.get_vocab())
        self._may_drop = spec["model"]["type"] == "BPE" and not spec["model"].get("unk_token")
        self._known: set[str] = set()

    def encode(self, text: str) -> np.ndarray:
        """Returns int32[n] without special tokens; UserError names what it does not know."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        for text in texts:
            _check_unicode(text)
        if self._table is not None:
            return [self._look_up(text, self._table) for text in texts]
        groups = [pieces(text) if self.kind in ("word", "bpe") else [text] for text in texts]
        ids = self._run([piece for group in groups for piece in group])
        return [np.concatenate([next(ids) for _ in group]) for group in groups]

    def decode(self, ids: Iterable[int]) -> str:
        """Drops special tokens and ids outside the vocabulary."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, index: int) -> str:
        """The written form of one id, special tokens included; '' outside the vocabulary."""
        return self._backend.id_to_token(int(index)) or ""

    def digits(self) -> tuple[int, ...]:
        """The ids of the tokens that are a digit, 0 … 9.

        Raises UserError where there are none, or where digits share tokens with others.
        """
        where = "model.position.source.kind"
        mend = "choose data.tokenizer.kind = char, byte or word, which make each digit a token"
        vocab = self._backend.get_vocab()
        if joined := sorted(token for token in vocab if JOINED_DIGITS.fullmatch(token)):
            what = f"is abacus, which counts digits, but {joined[0]!r} is one token"
            raise UserError(where, what, mend)
        found = sorted(vocab[digit] for digit in "0123456789" if digit in vocab)
        if not found:
            raise UserError(where, "is abacus, but the tokenizer has no digits", mend)
        return tuple(found)

    def with_special(self, names: list[str]) -> "Tokenizer":
        """The same with more special tokens behind its vocabulary."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens(names)
        return Tokenizer(backend)

    def sentinels(self) -> np.ndarray:
        """The ids of <extra_id_0>, <extra_id_1>, …, as many as there are."""
        found: list[int] = []
        while (token := find_token(self._backend, [SENTINEL.format(len(found))])) >= 0:
            found.append(token)
        return np.array(found, np.int32)

    def has(self, names: Iterable[str]) -> bool:
        """Whether one of the names is a token."""
        return find_token(self._backend, names) >= 0

    def num_bytes(self, index: int) -> int:
        """UTF-8 bytes that a token stands for (byte-level tokens have one symbol a byte)."""
        symbol = self.token(index)
        return len(symbol) if self.kind in ("byte", "bpe") else len(symbol.encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a tokenizer.json, whole or not at all."""
        temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
        self._backend.save(temporary)
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        if not os.path.isfile(path):
            raise UserError(str(path), "is not a file", "name a saved tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_file(os.fspath(path))
        except Exception as error:  # the library raises bare Exceptions
            reason = str(error).splitlines()[0]
            raise UserError(
                str(path), f"is not a tokenizer.json ({reason})", "name one saved by `tokenizers`"
            ) from error
        return cls(backend)

    def _look_up(self, text: str, table: np.ndarray) -> np.ndarray:
        """Char and byte kinds: one table look-up, a hundred times faster than the library."""
        if self.kind == "byte":
            return table[np.frombuffer(text.encode(), np.uint8)]
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = table[np.minimum(codes, len(table) - 1)]
        if ids.size and ids.min() < 0:
            self._refuse("characters", list(dict.fromkeys(text)), lambda c: table[_code(c, table)])
        return ids

    def _run(self, pieces: list[str]) -> Iterator[np.ndarray]:
        for start in range(0, len(pieces), PIECES):
            group = pieces[start : start + PIECES]
            if self._may_drop:
                self._check_dropped(group)
            try:
                encodings = self._backend.encode_batch_fast(group, add_special_tokens=False)
            except Exception:  # a word without an id and no unknown token: bare Exception
                self._refuse("words", _words(self._backend, group), self._try)
                raise
            for encoding in encodings:
                ids = np.array(encoding.ids, np.int32)
                if self.kind == "word" and ids.size and ids.min() < len(SPECIAL):
                    # A vocabulary of words cannot tell the text "<s>" from the token.
                    words = [SPECIAL[i] for i in sorted(set(ids[ids < len(SPECIAL)].tolist()))]
                    self._refuse("words", words, lambda _: -1)
                yield ids

    def _check_dropped(self, texts: list[str]) -> None:
        """BPE without an unknown token leaves out what it does not know: refuses that."""
        new = set().union(*texts) - self._known
        self._refuse("characters", sorted(c for c in new if not c.isspace()), self._try)
        self._known |= new

    def _try(self, text: str) -> int:
        try:
            return 0 if self._backend.encode(text, add_special_tokens=False).ids else -1
        except Exception:
            return -1

    def _refuse(self, what: str, candidates: list[str], test: Callable[[str], int]) -> None:
        unknown = [c for c in candidates if test(c) < 0]
        if not unknown:
            return
        names = ", ".join(repr(c) for c in unknown[:5]) + (", …" if len(unknown) > 5 else "")
        raise UserError(
            "text",
            f"holds {what} that the tokenizer does not know: {names}",
            "leave them out, or train with data.tokenizer.kind = byte or bpe, which know all",
        )


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            "text", f"holds half a character at {error.start} (a lone surrogate)", "leave it out"
        )


def find_token(backend: tokenizers.Tokenizer, names: Iterable[str]) -> int:
    """The id of the first of `names` that is a token, else -1."""
    ids = (backend.token_to_id(name) for name in names)
    return next((i for i in ids if i is not None), -1)


def _kind(spec: dict[str, Any]) -> str:
    """Tells from the file which kind made it: char | word | byte | bpe | file (anything else)."""
    split = (spec["pre_tokenizer"] or {}).get("type")
    join = (spec["decoder"] or {}).get("type")
    added = [t["content"] for t in spec["added_tokens"]]
    while added and added[-1] == SENTINEL.format(len(added) - 1 - len(SPECIAL)):
        added.pop()
    if spec["normalizer"] or spec["post_processor"] or added not in (SPECIAL, [*SPECIAL, MASK]):
        return "file"
    model = spec["model"]
    if model["type"] == "WordLevel":
        kinds = {("Split", "Fuse"): "char", ("WhitespaceSplit", None): "word"}
        return kinds.get((split, join), "file")
    if model["type"] == "BPE" and split == join == "ByteLevel":
        return "bpe" if spec["pre_tokenizer"]["use_regex"] else "byte"
    return "file"


def _table(kind: str, vocab: dict[str, int]) -> np.ndarray | None:
    """Ids by code point (-1 unknown, the last entry always) or by byte; None for other kinds."""
    if kind == "byte":
        return np.array([vocab[s] for _, s in sorted(byte_symbols().items())], np.int32)
    if kind != "char":
        return None
    codes = {ord(c): i for c, i in vocab.items() if len(c) == 1}
    table = np.full(max(codes, default=0) + 2, -1, np.int32)
    table[list(codes)] = list(codes.values())
    return table


def _code(character: str, table: np.ndarray) -> int:
    return min(ord(character), len(table) - 1)


def byte_symbols() -> dict[int, str]:
    """How byte-level vocabularies write each byte: itself if visible, else 256, 257, …"""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def _words(backend: tokenizers.Tokenizer, texts: list[str]) -> list[str]:
    split = backend.pre_tokenizer.pre_tokenize_str if backend.pre_tokenizer else str.split
    parts = (part for text in texts for part in split(text))
    return list(dict.fromkeys(p if isinstance(p, str) else p[0] for p in parts))


def pieces(text: str) -> list[str]:
    """Cuts a long text where no token can span the cut: after a lone line break."""
    cut = re.compile(r"(?<=\S)\n(?=\S)")
    parts, start = [], 0
    while match := cut.search(text, start + PIECE):
        parts.append(text[start : match.end()])
        start = match.end()
    return [*parts, text[start:]]
