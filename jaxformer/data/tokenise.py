"""Texts to token ids, some at a time."""

from collections.abc import Iterable, Iterator

import numpy as np

from jaxformer.data.cache import Document
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError

ENCODED = 2**20  # characters tokenised at a time


def documents(
    tokenizer: Tokenizer, texts: Iterable[str], where: str, *, add_bos: bool, add_eos: bool
) -> Iterator[Document]:
    """Token ids of each text with its special tokens, and the bytes its targets stand for.

    `where` is the file or field that an error names.
    """
    before = [tokenizer.bos_id] if add_bos else []
    after = [tokenizer.eos_id] if add_eos else []
    for group in groups(texts):
        for text, ids in zip(group, encode(tokenizer, group, where), strict=True):
            # Without <s> the first token is read but never predicted.
            unpredicted = 0 if add_bos or not len(ids) else tokenizer.num_bytes(ids[0])
            size = max(0, len(text.encode()) - unpredicted)
            yield np.concatenate([before, ids, after]).astype(np.int32), size


def encode(tokenizer: Tokenizer, texts: list[str], where: str) -> list[np.ndarray]:
    """The ids of each text; an error names `where`."""
    try:
        return tokenizer.encode_batch(texts)
    except UserError as error:
        raise UserError(where, error.what, error.mend)


def groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of about `ENCODED` characters."""
    group, size = [], 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= ENCODED:
            yield group
            group, size = [], 0
    if group:
        yield group
