"""Makes the tokenizer that a config asks for."""

import dataclasses
import logging
from collections.abc import Callable, Iterable

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from jaxformer.config import TokenizerConfig
from jaxformer.data.tokenizers import (
    BOS_NAMES,
    EOS_NAMES,
    MASK,
    PAD_NAMES,
    SENTINEL,
    SPECIAL,
    Tokenizer,
    byte_symbols,
    pieces,
)

log = logging.getLogger(__name__)


def make_tokenizer(
    cfg: TokenizerConfig,
    train: Callable[[], Iterable[str]],
    every: Callable[[], Iterable[str]],
    *,
    with_mask: bool = False,
    sentinels: int = 0,
) -> Tokenizer:
    """Makes the tokenizer that `cfg` asks for, `with_mask` one that has a <mask>.

    `sentinels`: with so many of <extra_id_0> … behind all others; a file has its own.

    `train` and `every` give the texts of the training documents and of all documents: merges are
    learned from the former, the symbols of kinds char and word are listed from the latter.
    """
    special = [*SPECIAL, MASK] if with_mask else SPECIAL
    if cfg.kind == "file":
        return _check_file(Tokenizer.load(cfg.path), cfg.path)
    if sentinels:
        size = max(0, cfg.vocab_size - sentinels)
        words = make_tokenizer(
            dataclasses.replace(cfg, vocab_size=size), train, every, with_mask=with_mask
        )
        return words.with_special([SENTINEL.format(i) for i in range(sentinels)])
    if cfg.kind == "char":
        return _char_tokenizer(sorted(set().union(*every())), special)
    if cfg.kind == "word":
        split = pre_tokenizers.WhitespaceSplit().pre_tokenize_str
        words = {w for text in every() for piece in pieces(text) for w, _ in split(piece)}
        return word_tokenizer(sorted(words.difference(special)), special)
    if cfg.kind == "byte":
        symbols = [symbol for _, symbol in sorted(byte_symbols().items())]
        model = models.BPE(vocab=_number(symbols, special), merges=[])
        return _finish(_byte_level(model, use_regex=False), special)
    backend = _byte_level(models.BPE(), use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=cfg.vocab_size,
        min_frequency=2,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((piece for text in train() for piece in pieces(text)), trainer)
    return _finish(backend, special)


def word_tokenizer(words: Iterable[str], special: list[str] = SPECIAL) -> Tokenizer:
    """Words in the given order after the special tokens."""
    backend = tokenizers.Tokenizer(models.WordLevel(_number(words, special)))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finish(backend, special)


def _char_tokenizer(characters: Iterable[str], special: list[str]) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel(_number(characters, special)))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _finish(backend, special)


def _byte_level(model: models.BPE, use_regex: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    backend.decoder = decoders.ByteLevel()
    return backend


def _finish(backend: tokenizers.Tokenizer, special: list[str]) -> Tokenizer:
    backend.add_special_tokens(special)
    return Tokenizer(backend)


def _number(symbols: Iterable[str], special: list[str]) -> dict[str, int]:
    return {symbol: i for i, symbol in enumerate([*special, *symbols])}


def _check_file(tokenizer: Tokenizer, path: str) -> Tokenizer:
    """Says in one line which special tokens a foreign tokenizer.json lacks."""
    ids = {"padding": PAD_NAMES, "begin": BOS_NAMES, "end": EOS_NAMES}
    lacks = [name for name, names in ids.items() if not tokenizer.has(names)]
    if lacks:
        log.warning("%s has no token for: %s", path, ", ".join(lacks))
    return tokenizer
