"""The tokenizer of a folder, with the special tokens that its files name."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.interop.family import Special
from jaxformer.interop.fields import read_json

FILE, SETTINGS, NAMES = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
ROLES = ("pad", "bos", "eos", "mask")


@dataclasses.dataclass(frozen=True)
class Words:
    """A tokenizer and whether texts are framed: <s> before, </s> after, each once."""

    tokenizer: Tokenizer
    add_bos: bool
    add_eos: bool


def read_words(folder: Path, values: Mapping[str, Any]) -> Words | None:
    """The tokenizer; None where the folder has none. `values` are those of config.json.

    Roles are those of tokenizer_config.json or special_tokens_map.json, where these are silent
    those of config.json, where it is too those of well-known names. Raises UserError.
    """
    backend = _read_backend(folder)
    if backend is None:
        return None
    settings: dict[str, Any] = {}
    for name in (NAMES, SETTINGS):
        settings |= read_json(folder / name) if (folder / name).exists() else {}
    ids: dict[str, int] = {}
    for role in ROLES:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        known = backend.token_to_id(token) if isinstance(token, str) else None
        if (found := first_id(values.get(f"{role}_token_id")) if known is None else known) >= 0:
            ids[role] = found
    start = first_id(values.get("decoder_start_token_id"))
    if values.get("is_encoder_decoder") and start >= 0:
        ids["start"] = start
    framed, plain = _encode_any(backend)
    before, after = _frame(framed, plain)
    tokenizer = Tokenizer(backend, ids)
    wanted = {"bos": before, "eos": after}
    for role, where in (("bos", 0), ("eos", -1)):
        told = settings.get(f"add_{role}_token")
        here = getattr(tokenizer, f"{role}_id")
        if isinstance(told, bool) and len(framed) == len(plain):
            wanted[role] = told and here >= 0
        elif wanted[role] and framed[where] != here:  # BERT's [CLS] and [SEP] have roles of theirs
            ids[role] = framed[where]
    return Words(Tokenizer(backend, ids), wanted["bos"], wanted["eos"])


def special_ids(tokenizer: Tokenizer) -> Special:
    """What a config.json says of a tokenizer; padding may be any token where there is none."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    start = tokenizer.start_id if tokenizer.start_id >= 0 else tokenizer.pad_id
    return Special(tokenizer.pad_id, bos, eos, start)


def write_words(folder: Path, tokenizer: Tokenizer, *, add_bos: bool, add_eos: bool) -> None:
    """tokenizer.json, which frames texts as in training, and tokenizer_config.json."""
    path = folder / FILE
    tokenizer.save(path)
    backend = tokenizers.Tokenizer.from_file(str(path))
    roles = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "mask": tokenizer.mask_id}
    if tokenizer.has_pad:
        roles["pad"] = tokenizer.pad_id
    names = {role: tokenizer.token(i) for role, i in roles.items() if i >= 0}
    frame = [names[r] for r in ("bos", "eos") if r in names and (add_bos, add_eos)[r == "eos"]]
    if backend.post_processor is None and frame:
        before = f"{names['bos']} " if add_bos and "bos" in names else ""
        after = f" {names['eos']}" if add_eos and "eos" in names else ""
        special = [(token, backend.token_to_id(token)) for token in dict.fromkeys(frame)]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{before}$A{after}", special_tokens=special
        )
        backend.save(str(path))
    settings = {f"{role}_token": token for role, token in names.items()}
    write_json(folder / SETTINGS, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    import json

    path.write_text(json.dumps(dict(values), indent=2) + "\n", encoding="utf-8")


def first_id(value: Any) -> int:
    """An id of config.json, the first of several; -1 where there is none."""
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _encode_any(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Any text that is known, with and without special tokens."""
    for text in ("a", *(backend.decode([i]) for i in range(backend.get_vocab_size()))):
        try:
            plain = backend.encode(text, add_special_tokens=False).ids
            if plain:
                return backend.encode(text, add_special_tokens=True).ids, plain
        except Exception:  # no such word: the library raises bare Exceptions
            continue
    return [], []


def _frame(framed: list[int], plain: list[int]) -> tuple[bool, bool]:
    """Whether one token was put before a text, and one after."""
    before = len(framed) > len(plain) and framed[1 : 1 + len(plain)] == plain
    return before, len(framed) == len(plain) + 1 + before


def _read_backend(folder: Path) -> tokenizers.Tokenizer | None:
    if (folder / FILE).exists():
        Tokenizer.load(folder / FILE)  # its errors name the file
        return tokenizers.Tokenizer.from_file(str(folder / FILE))
    if (folder / "vocab.txt").exists():
        return _word_pieces(folder)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _byte_pairs(folder)
    for name in ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"):
        if (folder / name).exists():
            what = f"has {name} and no {FILE}"
            mend = "write one with transformers: AutoTokenizer.from_pretrained(…).save_pretrained"
            raise UserError(str(folder), what, mend)
    return None


def _word_pieces(folder: Path) -> tokenizers.Tokenizer:
    """BERT's: a vocabulary of pieces, one a line."""
    path, settings = folder / "vocab.txt", folder / SETTINGS
    lower = read_json(settings).get("do_lower_case", True) if settings.exists() else True
    try:
        pieces = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(str(path), f"is not UTF-8 ({error.reason})", "copy it again") from error
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(pieces) if piece}
    for name in ("[UNK]", "[CLS]", "[SEP]"):
        if name not in vocab:
            raise UserError(str(path), f"has no {name}", "is it the vocabulary of a BERT?")
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=bool(lower))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(
        [n for n in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if n in vocab]
    )
    ends = [(name, vocab[name]) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return backend


def _byte_pairs(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2's, RoBERTa's, BART's: the latter two have <s> and </s> and frame texts with them."""
    vocab = read_json(folder / "vocab.json")
    if wrong := [token for token, i in vocab.items() if not isinstance(i, int)]:
        what = f"has {wrong[0]!r} without a number"
        raise UserError(str(folder / "vocab.json"), what, "copy it again")
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # the library raises bare Exceptions
        reason = " ".join(str(error).split())
        raise UserError(str(folder / "merges.txt"), f"cannot be read ({reason})", "copy it again")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
    backend.add_special_tokens([name for name in special if name in vocab])
    if "<s>" in vocab and "</s>" in vocab:
        ends = [(name, vocab[name]) for name in ("<s>", "</s>")]
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=ends
        )
    return backend
