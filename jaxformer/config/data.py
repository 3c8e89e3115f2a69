"""The data's fields."""

import dataclasses
import math
from typing import ClassVar, Literal

from jaxformer.config.images import check_image_data
from jaxformer.config.mixture import STREAMED_TOKENIZERS, MixtureConfig, StreamConfig
from jaxformer.config.objective import ObjectiveConfig
from jaxformer.config.section import Section, at_least, refuse, unread

TASKS = ("agreement", "task")
TABULAR = ("jsonl", "csv", "parquet", "hub", "tsv")  # sources with named columns
LABELLED = ("jsonl", "csv", "parquet", "tsv")  # … that classes are read from
PAIRED = ("text", *LABELLED)


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Section):
    kind: Literal["char", "byte", "word", "bpe", "file"]
    path: str
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class AgreementConfig(Section):
    num_examples: int
    max_modifiers: int
    modifier_weights: tuple[float, ...]

    def check(self) -> None:
        at_least("data.agreement", self, 1, "num_examples")
        at_least("data.agreement", self, 0, "max_modifiers")
        count, numbers = len(self.modifier_weights), self.max_modifiers + 1
        if count not in (0, numbers):
            what = f"has {count} for the numbers 0 … {self.max_modifiers}"
            refuse("data.agreement.modifier_weights", what, f"give {numbers}, or () for equal ones")
        if not all(0 < weight < math.inf for weight in self.modifier_weights):
            mend = "give positive ones: a lower data.agreement.max_modifiers leaves numbers out"
            refuse("data.agreement.modifier_weights", f"is {self.modifier_weights}", mend)


MOST_MODULUS = 10_000  # products are int32, and each residue is a word


@dataclasses.dataclass(frozen=True)
class TaskConfig(Section):
    name: str
    min_length: int
    max_length: int
    num_examples: int
    symbols: int
    modulus: int
    brackets: int
    hints: int
    ignore: float
    split: str

    def check(self) -> None:
        where = "data.task"
        if not self.name:
            refuse(f"{where}.name", "is empty while data.source = task", "name a task")
        at_least(where, self, 1, "min_length")
        at_least(where, self, 0, "num_examples", "symbols", "modulus", "brackets", "hints")
        if self.max_length < self.min_length:
            what = f"is {self.max_length}, below min_length = {self.min_length}"
            refuse(f"{where}.max_length", what, "raise it")
        if self.modulus > MOST_MODULUS:
            refuse(f"{where}.modulus", f"is {self.modulus}", f"give {MOST_MODULUS:,} at most")
        if self.hints == 1:
            refuse(f"{where}.hints", "is 1", "a sum of one digit has two hints: give 2 or more")
        if not 0 <= self.ignore < 1:
            refuse(f"{where}.ignore", f"is {self.ignore}", "give a share from 0 to below 1")


@dataclasses.dataclass(frozen=True)
class DataConfig(Section):
    prefix: ClassVar[str] = "data"

    source: Literal[
        "agreement",
        "task",
        "text",
        "jsonl",
        "csv",
        "tsv",
        "parquet",
        "folder",
        "hub",
        "images",
    ]
    path: str
    mixture: MixtureConfig
    streaming: bool
    stream: StreamConfig
    target_path: str
    validation_path: str
    validation_target_path: str
    text_field: str
    label_field: str
    source_field: str
    target_field: str
    columns: str
    pattern: str
    length: int
    target_length: int
    validation_fraction: float
    split_seed: int
    seed: int
    add_bos: bool
    add_eos: bool
    pack: bool
    cache: str
    tokenizer: TokenizerConfig
    agreement: AgreementConfig
    task: TaskConfig

    @property
    def paths(self) -> tuple[str, ...]:
        """The sources: several of a mixture, or a single one."""
        return self.mixture.paths or (self.path,)

    @property
    def name(self) -> str:
        """What an error about the sources together names."""
        return ", ".join(self.paths)

    @property
    def held_out(self) -> float:
        """The share that is kept for validation."""
        return self.validation_fraction or 0.1

    @property
    def is_task(self) -> bool:
        return self.source in TASKS

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a table without a first line of names; empty where it has one."""
        return tuple(name.strip() for name in self.columns.split(",")) if self.columns else ()

    def check(self) -> None:
        at_least("data", self, 2, "length")
        at_least("data", self, 0, "target_length", "split_seed", "seed")
        if self.seed >= 2**32:
            refuse("data.seed", f"is {self.seed}", "give a number up to 4294967295")
        if not 0 <= self.validation_fraction < 1:
            refuse(
                "data.validation_fraction",
                f"is {self.validation_fraction}",
                "give a share from 0 (a tenth) to below 1",
            )
        self.mixture.check()
        if self.streaming:
            self._check_streaming()
        if self.is_task:
            self._check_task()
        else:
            if self.path and self.mixture.paths:
                mend = "name the data by one of them"
                refuse("data.mixture.paths", f"is set besides data.path = {self.path}", mend)
            if not self.path and not self.mixture.paths:
                refuse("data.path", f"is empty while data.source = {self.source}", "name the data")
            reader, tables = f"data.source = {' | '.join(TABULAR)}", self.source in ("csv", "tsv")
            unread("data.text_field", self.text_field, self.source in TABULAR, reader)
            unread("data.columns", self.columns, tables, "data.source = csv, tsv")
            unread("data.pattern", self.pattern, self.source == "folder", "data.source = folder")
            own = self.source != "hub"
            unread("data.validation_path", self.validation_path, own, "a source of local files")
            drawn, reader = not self.validation_path, "a split of data.path"
            unread("data.validation_fraction", self.validation_fraction, drawn, reader)
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

    def check_objective(self, objective: ObjectiveConfig) -> None:
        """Raises UserError where the data do not have what the objective learns from."""
        pairs, labels, kind = objective.has_pairs, objective.has_labels, objective.kind
        if self.is_task and kind != "causal_lm":
            mend = "tasks are for causal_lm: set data.source"
            refuse("objective.kind", f"is {kind} while data.source = {self.source}", mend)
        if kind == "span_corruption":
            self._check_spans(objective)
        if self.source == "images":
            check_image_data(self, kind)
            return
        sources = PAIRED if pairs else LABELLED if labels else (self.source,)
        if self.source not in sources:
            mend = f"choose from {', '.join(sources)}"
            refuse("data.source", f"is {self.source} while objective.kind = {kind}", mend)
        if self.streaming and (objective.has_source or labels):
            mend = "only documents are streamed, to language models: set it to false"
            refuse("data.streaming", f"is true while objective.kind = {kind}", mend)
        two_texts = pairs and self.source == "text"
        if two_texts and self.mixture.paths:
            mend = "mix jsonl, csv, tsv or parquet, which have both sides in a file"
            refuse("data.mixture.paths", "is set for pairs of two text files", mend)
        texts, tables = "seq2seq with data.source = text", "seq2seq with a source that has columns"
        if two_texts and not self.target_path:
            refuse("data.target_path", "is empty", "name the translations of data.path")
        if two_texts and bool(self.validation_path) != bool(self.validation_target_path):
            mend = "validation pairs are in two files: give both or neither"
            refuse("data.validation_target_path", "and validation_path: one is empty", mend)
        classification = "objective.kind = sequence_classification, token_classification"
        drawn = (pairs or labels) and not self.validation_path
        for name, is_read, reader in (
            ("target_path", two_texts, texts),
            ("validation_target_path", two_texts, texts),
            ("source_field", pairs and not two_texts, tables),
            ("target_field", pairs and not two_texts, tables),
            ("text_field", not pairs, "an objective other than seq2seq"),
            ("label_field", labels, classification),
            ("target_length", objective.has_source, "objective.kind = seq2seq"),
            ("split_seed", drawn, "a split of pairs or labelled examples"),
        ):
            unread(f"data.{name}", getattr(self, name), is_read, reader)
        if labels and self.pack:
            mend = "a row of a classifier is one text: set it to false"
            refuse("data.pack", f"is true while objective.kind = {kind}", mend)

    def _check_spans(self, objective: ObjectiveConfig) -> None:
        spans, size = objective.span_corruption, self.tokenizer.vocab_size
        spans.check_length(self.length)
        if self.target_length not in (0, computed := spans.target_length(self.length)):
            what = f"is {self.target_length}, but rows of span_corruption have {computed}"
            refuse("data.target_length", what, "leave it at 0: it follows from data.length")
        if self.tokenizer.kind == "bpe" and size < 260 + spans.sentinels:
            mend = f"byte-level BPE with {spans.sentinels} sentinels needs {260 + spans.sentinels}"
            refuse("data.tokenizer.vocab_size", f"is {size}", mend)

    def _check_streaming(self) -> None:
        """A stream is read once, forwards: what needs to know all of it is refused."""
        self.stream.check()
        unread("data.streaming", self.streaming, not self.is_task, "a data.source that reads files")
        if self.validation_fraction:
            mend = "give data.validation_path or data.stream.validation_documents"
            what = f"is {self.validation_fraction} of a stream, whose end is not known"
            refuse("data.validation_fraction", what, mend)
        documents = self.stream.validation_documents
        if bool(documents) == bool(self.validation_path):
            how = "both are set" if documents else "neither is set"
            mend = "a stream takes its validation data from one of them"
            refuse("data.validation_path", f"or data.stream.validation_documents: {how}", mend)
        if self.tokenizer.kind not in STREAMED_TOKENIZERS:
            kinds = ", ".join(STREAMED_TOKENIZERS)
            mend = f"choose from {kinds}: others are made from all the text"
            refuse("data.tokenizer.kind", f"is {self.tokenizer.kind} for a stream", mend)
        if self.mixture.paths and not self.mixture.weights:
            mend = "give one for each path: the size of a stream is not known"
            refuse("data.mixture.weights", "is empty for streams", mend)
        if self.mixture.end == "stop":
            mend = "streams start again, so that no run ends short: set it to repeat"
            refuse("data.mixture.end", "is stop for streams", mend)

    def _check_task(self) -> None:
        is_agreement = self.source == "agreement"
        if is_agreement:
            self.agreement.check()
        else:
            self.task.check()
        reader = "a data.source that reads files"
        read_path = not is_agreement and self.task.name == "scan"
        unread("data.path", self.path, read_path, reader)
        for name in (
            *("validation_path", "validation_fraction"),
            *("text_field", "columns", "pattern", "cache"),
        ):
            unread(f"data.{name}", getattr(self, name), False, reader)
        unread("data.mixture.paths", self.mixture.paths, False, reader)
        if self.tokenizer.kind != "word":
            refuse(
                "data.tokenizer.kind",
                f"is {self.tokenizer.kind} while data.source = {self.source}",
                "the task brings its own words: leave it at word",
            )
        if is_agreement and not self.add_bos:
            refuse("data.add_bos", "is false", "agreement sentences have <s> and </s>")
        if not self.add_eos:
            refuse("data.add_eos", "is false", "rows of a task end with </s>")
        if self.pack:
            refuse(
                "data.pack",
                f"is true while data.source = {self.source}",
                "a row of a task is one example: set it to false",
            )
