"""Texts of a file as a model reads them: encoded, and behind the token that starts a text."""

import dataclasses
from typing import Any

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.nn.positions.sources import Limit, check_any_text, document_limit

MODELS = ("decoder", "lstm")  # that read a text from its first token to its last


@dataclasses.dataclass(frozen=True)
class Reader:
    """`start` is the id before each text, -1 where there is none.

    Without one the first token of a text is read and not scored: no model says how probable it is.
    """

    tokenizer: Tokenizer
    start: int
    limit: Limit

    def encode(self, where: str, text: str) -> np.ndarray:
        """Ids without the start; UserError says where the text is."""
        try:
            return self.tokenizer.encode(text)
        except UserError as error:
            raise UserError(where, error.what, error.mend)

    def stream(self, where: str, text: str) -> np.ndarray:
        """int32[n]: all that is read; UserError where nothing of it can be scored."""
        start = [self.start] if self.start >= 0 else []
        ids = np.concatenate([np.array(start, np.int32), self.encode(where, text)])
        if len(ids) < 2:
            what = "is empty" if len(ids) == len(start) else "is a text of one token"
            raise UserError(where, what, "give a longer one: a score needs a token before")
        return ids

    def sentence(self, where: str, text: str) -> np.ndarray:
        """The same of a text that is read in one piece; UserError where that is too long."""
        ids, (most, field) = self.stream(where, text), self.limit
        if most and len(ids) - 1 > most:
            what = f"takes {len(ids) - 1} tokens to read"
            raise UserError(where, what, f"{field} allows {most}: shorten it")
        return ids

    def describe(self) -> dict[str, Any]:
        """For results."""
        return {"start": self.tokenizer.token(self.start) if self.start >= 0 else None}


def make_reader(cfg: RunConfig, tokenizer: Tokenizer, *, published: bool) -> Reader:
    """How a run reads texts: as in training. A published model reads each behind its begin token.

    Raises UserError for a model that does not predict a text from its start on.
    """
    if cfg.model.architecture not in MODELS:
        what = f"is {cfg.model.architecture}, which gives a text no probability"
        raise UserError("model.architecture", what, f"it takes one of {', '.join(MODELS)}")
    check_any_text(cfg.model)
    start = tokenizer.bos_id if cfg.data.add_bos or published else -1
    return Reader(tokenizer, start, document_limit(cfg.model))
