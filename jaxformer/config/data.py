"""The data's fields."""

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config.section import Section, at_least, refuse, unread

TASKS = ("agreement",)


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Section):
    kind: Literal["char", "byte", "word", "bpe", "file"]
    path: str
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class AgreementConfig(Section):
    num_examples: int
    max_modifiers: int


@dataclasses.dataclass(frozen=True)
class DataConfig(Section):
    prefix: ClassVar[str] = "data"

    source: Literal["agreement", "text", "jsonl", "csv", "parquet", "folder", "hub"]
    path: str
    text_field: str
    pattern: str
    length: int
    validation_fraction: float
    add_bos: bool
    add_eos: bool
    pack: bool
    tokenizer: TokenizerConfig
    agreement: AgreementConfig

    @property
    def is_task(self) -> bool:
        return self.source in TASKS

    def check(self) -> None:
        at_least("data", self, 2, "length")
        if not 0 < self.validation_fraction < 1:
            refuse(
                "data.validation_fraction",
                f"is {self.validation_fraction}",
                "give a share between 0 and 1, both excluded",
            )
        if self.is_task:
            self._check_task()
        else:
            if not self.path:
                refuse("data.path", f"is empty while data.source = {self.source}", "name the data")
            tabular = ("jsonl", "csv", "parquet", "hub")
            unread("data.text_field", self.text_field, self.source in tabular, f"of {tabular}")
            unread("data.pattern", self.pattern, self.source == "folder", "data.source = folder")
        kind, size = self.tokenizer.kind, self.tokenizer.vocab_size
        unread("data.tokenizer.path", self.tokenizer.path, kind == "file", "kind = file")
        unread("data.tokenizer.vocab_size", size, kind == "bpe", "kind = bpe")
        if kind == "file" and not self.tokenizer.path:
            refuse("data.tokenizer.path", "is empty while kind = file", "name a tokenizer.json")
        if kind == "bpe" and size < 260:
            refuse(
                "data.tokenizer.vocab_size",
                f"is {size}",
                "byte-level BPE needs at least 260: 256 bytes, 3 special tokens and a merge",
            )

    def _check_task(self) -> None:
        at_least("data.agreement", self.agreement, 1, "num_examples")
        at_least("data.agreement", self.agreement, 0, "max_modifiers")
        for name in ("path", "text_field", "pattern"):
            unread(f"data.{name}", getattr(self, name), False, "a data.source that reads files")
        if self.tokenizer.kind != "word":
            refuse(
                "data.tokenizer.kind",
                f"is {self.tokenizer.kind} while data.source = {self.source}",
                "the task brings its own words: leave it at word",
            )
        for name in ("add_bos", "add_eos"):
            if not getattr(self, name):
                refuse(f"data.{name}", "is false", "agreement sentences have <s> and </s>")
        if self.pack:
            refuse(
                "data.pack",
                f"is true while data.source = {self.source}",
                "a row of a task is one example: set it to false",
            )
