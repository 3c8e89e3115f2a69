"""From files or hub names to rows of text: one source, or several that are mixed.

Each source has a cache of its training documents, the same as in a run on it alone; the validation
documents of all share one.
"""

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.cache import TokenCache, fingerprint
from jaxformer.data.drawn import MaskedRows, PrefixRows, lookahead
from jaxformer.data.mixture import mix, seed_of
from jaxformer.data.packing import DocumentRows, PackedRows, RowSource
from jaxformer.data.places import find_place
from jaxformer.data.sources import (
    Texts,
    check_apart,
    files_fingerprint,
    find_files,
    read_texts,
    texts_of,
)
from jaxformer.data.spans import SpanRows
from jaxformer.data.tokenise import documents
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import make_tokenizer
from jaxformer.data.workdir import check_special, saved_tokenizer
from jaxformer.errors import UserError


def open_texts(cfg: RunConfig, workdir: Path | None) -> tuple[Tokenizer, RowSource, RowSource]:
    """The tokenizer and the rows of training and validation; raises UserError."""
    data = cfg.data
    tokenizer, caches, held_out = _tokenise(cfg, workdir)
    if data.mixture.paths:
        sources = [
            make_rows(cfg, tokenizer, cache, path, seed_of(cfg.data_seed, index))
            for index, (cache, path) in enumerate(zip(caches, data.paths, strict=True))
        ]
        train = mix(sources, data.paths, data.mixture.weights, data.mixture.end, cfg.data_seed)
    else:
        train = make_rows(cfg, tokenizer, caches[0], data.path, cfg.data_seed)
    where = data.validation_path or data.name
    return tokenizer, train, make_rows(cfg, tokenizer, held_out, where)


def make_rows(
    cfg: RunConfig, tokenizer: Tokenizer, cache: TokenCache, where: str, seed: int | None = None
) -> RowSource:
    """Rows of training with `seed`, else of validation.

    Raises UserError, which names `where`, if packing does not fill one or no document has a pair.
    """
    tokens, length = int(cache.offsets[-1]), cfg.data.length
    if cfg.objective.kind == "span_corruption":
        length = cfg.objective.span_corruption.window(length)
    packed, ahead = cfg.data.pack, lookahead(cfg.objective.kind)
    if packed:
        rows = PackedRows(
            cache, length, cfg.data_seed if seed is None else seed, seed is not None, ahead
        )
    else:
        rows = DocumentRows(cache, length, ahead)
    if not rows.num_tokens or (packed and tokens <= length):
        part, why = "validation" if seed is None else "training", f"data.length = {cfg.data.length}"
        raise UserError(
            where,
            f"has {tokens} tokens for {part}, too few for {why} and a next token",
            "give more text, lower data.length or change data.validation_fraction",
        )
    drawn = cfg.data_seed if seed is None else seed
    if cfg.objective.kind == "masked_lm":
        return MaskedRows(rows, cfg.objective.masked_lm, tokenizer, drawn)
    if cfg.objective.kind == "span_corruption":
        return SpanRows(rows, cfg.objective.span_corruption, cfg.data.length, tokenizer, drawn)
    return PrefixRows(rows, drawn) if cfg.objective.kind == "prefix_lm" else rows


def _tokenise(
    cfg: RunConfig, workdir: Path | None
) -> tuple[Tokenizer, list[TokenCache], TokenCache]:
    """The tokenizer and the caches; texts are read only if one is missing."""
    data, place = cfg.data, find_place(cfg.data, workdir)
    sources = [dataclasses.replace(data, path=path) for path in data.paths]
    files = [find_files(source, workdir) for source in sources]
    check_apart(files)
    held_out = []
    if data.validation_path:
        held_out = find_files(
            dataclasses.replace(data, path=data.validation_path), workdir, "data.validation_path"
        )
    content = [files_fingerprint(part) for part in (*files, held_out) if part]
    saved = saved_tokenizer(data, workdir)
    if saved and all(files):
        caches = [place.read(name) for name in _names(data, content, saved)]
        if all(caches):
            check_special(cfg, saved)
            *train, validation = [cache for cache in caches if cache]
            return saved, train, validation
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arrow-", dir=workdir) as arrow:
        texts = [
            read_texts(source, part, arrow, held_out)
            for source, part in zip(sources, files, strict=True)
        ]
        tokenizer = saved or make_tokenizer(
            data.tokenizer,
            lambda: _train(texts),
            lambda: itertools.chain(_train(texts), _validation(texts, bool(held_out))),
            with_mask=cfg.objective.kind == "masked_lm",
            sentinels=_sentinels(cfg),
        )
        check_special(cfg, tokenizer)
        names = _names(data, content or [[part.fingerprint()] for part in texts], tokenizer)
        splits = [
            (texts_of(part.train), path) for part, path in zip(texts, data.paths, strict=True)
        ]
        splits.append((_validation(texts, bool(held_out)), data.validation_path or data.name))
        special = {"add_bos": data.add_bos, "add_eos": data.add_eos}
        *train, validation = [
            place.open(name, tokenizer.vocab_size, documents(tokenizer, split, where, **special))
            for name, (split, where) in zip(names, splits, strict=True)
        ]
    return tokenizer, train, validation


def _sentinels(cfg: RunConfig) -> int:
    """How many tokens a vocabulary that is made here has for hidden spans."""
    objective = cfg.objective
    return objective.span_corruption.sentinels if objective.kind == "span_corruption" else 0


def _train(texts: list[Texts]) -> Iterator[str]:
    return itertools.chain.from_iterable(texts_of(part.train) for part in texts)


def _validation(texts: list[Texts], has_files: bool) -> Iterator[str]:
    """Those of all sources; where validation has files of its own, all have the same."""
    return itertools.chain.from_iterable(
        texts_of(part.validation) for part in (texts[:1] if has_files else texts)
    )


def _names(cfg: DataConfig, content: list[list[str]], tokenizer: Tokenizer) -> list[str]:
    """Fingerprints of the caches, validation's last: all that their content depends on.

    `content` has the hashes of each source, and those of the validation files where it has some.
    """
    shape = [cfg.source, cfg.text_field or "text", cfg.columns]
    shape += [] if cfg.validation_path else [cfg.held_out]
    parts = [shape, [cfg.add_bos, cfg.add_eos], tokenizer.fingerprint]
    count = len(cfg.paths)
    sources, held_out = content[:count], content[count:]
    names = [fingerprint([source, *held_out], *parts, "train") for source in sources]
    return [*names, fingerprint(content, *parts, "validation")]
