"""Frozen, typed configuration.

`configs/base.py` holds every field with its default and comment; the dataclasses here hold the
types. `RunConfig.from_config_dict` converts strictly (no unknown, missing or mistyped field) and
then checks the fields against one another, so that whatever can be refused is refused before any
device is touched. Errors are `UserError`s that name the field by its path.
"""

import dataclasses
import difflib
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from jaxformer.errors import UserError

GATED = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu"}
TASKS = ("agreement",)


class Section:
    """A group of fields: strict conversion from and to plain mappings."""

    prefix: ClassVar[str] = ""

    @classmethod
    def from_config_dict(cls, values: Mapping[str, Any]) -> Self:
        """Converts a ConfigDict or the content of a config.json; raises UserError."""
        section = _convert(cls, values, cls.prefix)
        section.check()
        return section

    def check(self) -> None:
        """Raises UserError where fields contradict one another."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]


@dataclasses.dataclass(frozen=True)
class LayerNormConfig(Section):
    bias: bool


@dataclasses.dataclass(frozen=True)
class DropoutConfig(Section):
    embedding: float
    attention: float
    feed_forward: float
    residual: float


@dataclasses.dataclass(frozen=True)
class SinusoidalConfig(Section):
    base: float
    layout: Literal["interleaved", "concatenated"]
    scale: float


@dataclasses.dataclass(frozen=True)
class RopeConfig(Section):
    base: float
    layout: Literal["half", "interleaved"]
    fraction: float


@dataclasses.dataclass(frozen=True)
class PositionConfig(Section):
    kind: Literal["none", "sinusoidal", "learned", "rope"]
    sinusoidal: SinusoidalConfig
    rope: RopeConfig


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section):
    prefix: ClassVar[str] = "model"

    architecture: Literal["decoder"]
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    max_length: int
    activation: Literal["relu", "gelu", "gelu_exact", "silu", "reglu", "geglu", "swiglu"]
    norm: Literal["layernorm", "rmsnorm"]
    norm_placement: Literal["pre", "post", "sandwich", "none"]
    final_norm: Literal["auto", "true", "false"]
    norm_epsilon: float
    attention_bias: bool
    feed_forward_bias: bool
    head_bias: bool
    tie_embeddings: bool
    scale_embeddings: bool
    initializer: Literal["gpt2", "xavier"]
    scan_layers: bool
    layernorm: LayerNormConfig
    dropout: DropoutConfig
    position: PositionConfig

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def ff_width(self) -> int:
        return self.d_ff or 4 * self.d_model

    @property
    def has_final_norm(self) -> bool:
        if self.final_norm == "auto":
            return self.norm_placement in ("pre", "sandwich")
        return self.final_norm == "true"

    def check(self) -> None:
        _at_least("model", self, 1, "num_layers", "d_model", "num_heads", "max_length")
        _at_least("model", self, 0, "num_kv_heads", "head_dim", "d_ff", "vocab_size")
        _positive("model", self, "norm_epsilon")
        for name, rate in self.dropout.to_dict().items():
            if not 0 <= rate < 1:
                _refuse(f"model.dropout.{name}", f"is {rate}", "give a rate from 0 to below 1")
        if self.num_heads % self.kv_heads:
            _refuse(
                "model.num_kv_heads",
                f"{self.kv_heads} does not divide num_heads = {self.num_heads}",
                "query heads share key/value heads in equal groups",
            )
        if not self.head_dim and self.d_model % self.num_heads:
            _refuse(
                "model.d_model",
                f"{self.d_model} is not divisible by num_heads = {self.num_heads}",
                "change one of them or set model.head_dim",
            )
        self._check_positions()

    def _check_positions(self) -> None:
        position = self.position
        if position.kind == "sinusoidal":
            _positive("model.position.sinusoidal", position.sinusoidal, "base")
            if self.d_model % 2:
                _refuse(
                    "model.d_model", f"{self.d_model} is odd", "sinusoidal positions need pairs"
                )
        if position.kind == "rope":
            _positive("model.position.rope", position.rope, "base")
            fraction, where = position.rope.fraction, "model.position.rope.fraction"
            if not 0 < fraction <= 1:
                _refuse(where, f"is {fraction}", "give a share above 0 and up to 1")
            rotated = fraction * self.head_width
            whole = abs(rotated - round(rotated)) < 1e-6  # .29 · 200 is 57.99999999999999
            if not whole or round(rotated) % 2 or not round(rotated):
                _refuse(
                    where,
                    f"rotates {rotated:g} of {self.head_width} dimensions of a head",
                    "rotation needs an even whole number of them",
                )


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
        _at_least("data", self, 2, "length")
        if not 0 < self.validation_fraction < 1:
            _refuse(
                "data.validation_fraction",
                f"is {self.validation_fraction}",
                "give a share between 0 and 1, both excluded",
            )
        if self.is_task:
            self._check_task()
        else:
            if not self.path:
                _refuse("data.path", f"is empty while data.source = {self.source}", "name the data")
            tabular = ("jsonl", "csv", "parquet", "hub")
            _unread("data.text_field", self.text_field, self.source in tabular, f"of {tabular}")
            _unread("data.pattern", self.pattern, self.source == "folder", "data.source = folder")
        kind, size = self.tokenizer.kind, self.tokenizer.vocab_size
        _unread("data.tokenizer.path", self.tokenizer.path, kind == "file", "kind = file")
        _unread("data.tokenizer.vocab_size", size, kind == "bpe", "kind = bpe")
        if kind == "file" and not self.tokenizer.path:
            _refuse("data.tokenizer.path", "is empty while kind = file", "name a tokenizer.json")
        if kind == "bpe" and size < 260:
            _refuse(
                "data.tokenizer.vocab_size",
                f"is {size}",
                "byte-level BPE needs at least 260: 256 bytes, 3 special tokens and a merge",
            )

    def _check_task(self) -> None:
        _at_least("data.agreement", self.agreement, 1, "num_examples")
        _at_least("data.agreement", self.agreement, 0, "max_modifiers")
        for name in ("path", "text_field", "pattern"):
            _unread(f"data.{name}", getattr(self, name), False, "a data.source that reads files")
        if self.tokenizer.kind != "word":
            _refuse(
                "data.tokenizer.kind",
                f"is {self.tokenizer.kind} while data.source = {self.source}",
                "the task brings its own words: leave it at word",
            )
        for name in ("add_bos", "add_eos"):
            if not getattr(self, name):
                _refuse(f"data.{name}", "is false", "agreement sentences have <s> and </s>")
        if self.pack:
            _refuse(
                "data.pack",
                f"is true while data.source = {self.source}",
                "a row of a task is one example: set it to false",
            )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    prefix: ClassVar[str] = "optimizer"

    kind: Literal["adamw"]
    b1: float
    b2: float
    epsilon: float
    weight_decay: float
    clip_norm: float

    def check(self) -> None:
        _at_least("optimizer", self, 0, "weight_decay", "clip_norm")
        _positive("optimizer", self, "epsilon")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                _refuse(f"optimizer.{name}", f"is {getattr(self, name)}", "give 0 to below 1")


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Section):
    prefix: ClassVar[str] = "schedule"

    kind: Literal["warmup_cosine", "constant"]
    init_value: float
    peak_value: float
    warmup_steps: int
    decay_steps: int
    end_value: float

    def check(self) -> None:
        _at_least("schedule", self, 0, "init_value", "end_value", "warmup_steps", "decay_steps")
        _positive("schedule", self, "peak_value")
        if self.kind == "constant":
            for name in ("init_value", "warmup_steps", "decay_steps", "end_value"):
                _unread(f"schedule.{name}", getattr(self, name), False, "kind = warmup_cosine")
        elif self.decay_steps and self.warmup_steps >= self.decay_steps:
            _refuse(
                "schedule.warmup_steps",
                f"{self.warmup_steps} is not below decay_steps = {self.decay_steps}",
                "decay_steps is the whole length, warmup included",
            )


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section):
    prefix: ClassVar[str] = "train"

    num_steps: int
    num_epochs: float
    batch_size: int
    num_microbatches: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    keep_latest: int
    keep_best: int
    max_skipped_steps: int

    def check(self) -> None:
        _at_least("train", self, 1, "batch_size", "num_microbatches", "log_every", "keep_latest")
        _at_least("train", self, 1, "max_skipped_steps")
        _at_least("train", self, 0, "num_steps", "num_epochs", "keep_best")
        _at_least("train", self, 0, "eval_every", "checkpoint_every")
        if not self.num_steps and not self.num_epochs:
            _refuse("train.num_steps", "and train.num_epochs are 0", "give the run an end")
        if self.batch_size % self.num_microbatches:
            _refuse(
                "train.num_microbatches",
                f"{self.num_microbatches} does not divide batch_size = {self.batch_size}",
                "microbatches are equal parts of a batch",
            )


@dataclasses.dataclass(frozen=True)
class EvalConfig(Section):
    prefix: ClassVar[str] = "eval"

    batch_size: int
    max_rows: int

    def check(self) -> None:
        _at_least("eval", self, 1, "batch_size")
        _at_least("eval", self, 0, "max_rows")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section):
    prefix: ClassVar[str] = "mesh"

    data: int
    fsdp: int

    def check(self) -> None:
        sizes = self.to_dict()
        for name, size in sizes.items():
            if size < 1 and size != -1:
                _refuse(
                    f"mesh.{name}", f"is {size}", "give a number of devices, or -1 for the rest"
                )
        if list(sizes.values()).count(-1) > 1:
            _refuse("mesh", f"has more than one -1: {sizes}", "give all sizes but one")


@dataclasses.dataclass(frozen=True)
class RunConfig(Section):
    seed: int
    compute_dtype: Literal["float32", "bfloat16"]
    model: ModelConfig
    data: DataConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    train: TrainConfig
    eval: EvalConfig
    mesh: MeshConfig

    def check(self) -> None:
        if not 0 <= self.seed < 2**32:
            _refuse("seed", f"is {self.seed}", "give a number from 0 to 4294967295")
        parts = (self.model, self.data, self.optimizer, self.schedule, self.train, self.eval)
        for section in (*parts, self.mesh):
            section.check()
        if self.data.length > self.model.max_length:
            _refuse(
                "data.length",
                f"{self.data.length} is more than model.max_length = {self.model.max_length}",
                "raise the latter",
            )
        steps = self.train.num_steps
        if self.schedule.kind == "warmup_cosine" and not self.schedule.decay_steps:
            if steps and self.schedule.warmup_steps >= steps:
                _refuse(
                    "schedule.warmup_steps",
                    f"{self.schedule.warmup_steps} is not below the run's {steps} steps",
                    "lower it, or set schedule.decay_steps",
                )

    def resolve(self, *, vocab_size: int, steps_per_epoch: float) -> "RunConfig":
        """Fills what only the data can tell: vocabulary size, number of steps, decay steps."""
        if self.model.vocab_size and self.model.vocab_size < vocab_size:
            _refuse(
                "model.vocab_size",
                f"{self.model.vocab_size} is too small for the tokenizer's {vocab_size} tokens",
                "raise it, or set 0 to take the tokenizer's",
            )
        replace = dataclasses.replace
        by_epochs = max(1, round(self.train.num_epochs * steps_per_epoch))
        bounds = [self.train.num_steps, by_epochs if self.train.num_epochs else 0]
        steps = min(bound for bound in bounds if bound)
        schedule = self.schedule
        if schedule.kind == "warmup_cosine" and not schedule.decay_steps:
            schedule = replace(schedule, decay_steps=steps)
        resolved = replace(
            self,
            model=replace(self.model, vocab_size=self.model.vocab_size or vocab_size),
            train=replace(self.train, num_steps=steps, num_epochs=0.0),
            schedule=schedule,
        )
        resolved.check()
        return resolved

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RunConfig":
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
        except (OSError, ValueError) as error:
            raise UserError(str(path), f"cannot be read: {error}", "is it a run's config.json?")
        return cls.from_config_dict(values)


def _convert(cls: Any, values: Any, prefix: str) -> Any:
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        _refuse(prefix or "config", f"is {values!r}", "it is a section with fields of its own")
    values = dict(values.items())
    types = {k: v for k, v in get_type_hints(cls).items() if get_origin(v) is not ClassVar}
    for name in values:
        if name not in types:
            near = difflib.get_close_matches(str(name), types, n=1)
            hint = f"did you mean {_join(prefix, near[0])}?" if near else "see configs/base.py"
            _refuse(_join(prefix, name), "is not a field", hint)
    for name in types:
        if name not in values:
            _refuse(_join(prefix, name), "is missing", "start from configs/base.py, which has it")
    return cls(**{n: _value(t, values[n], _join(prefix, n)) for n, t in types.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _convert(kind, value, where)
    if get_origin(kind) is tuple:  # tuple[T, ...]; JSON has lists for them
        if not isinstance(value, tuple | list):
            _refuse(where, f"is {value!r}", "it takes a sequence")
        return tuple(_value(get_args(kind)[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = [str(c) for c in get_args(kind)]
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            _refuse(where, f"is {value!r}", f"{hint}choose from {', '.join(choices)}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        _refuse(where, f"is {value!r}", f"it takes a value of type {kind.__name__}")
    if kind is float and not math.isfinite(value):
        _refuse(where, f"is {value}", "give a finite number")
    return value


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def _refuse(where: str, what: str, mend: str) -> None:
    raise UserError(where, what, mend)


def _bound(
    prefix: str, section: Any, names: tuple[str, ...], fine: Callable[[Any], bool], mend: str
) -> None:
    for name in names:
        value = getattr(section, name)
        if not fine(value):
            _refuse(_join(prefix, name), f"is {value}", mend)


def _at_least(prefix: str, section: Any, least: int, *names: str) -> None:
    _bound(prefix, section, names, lambda v: v >= least, f"give {least} or more")


def _positive(prefix: str, section: Any, *names: str) -> None:
    _bound(prefix, section, names, lambda v: v > 0, "give a number above 0")


def _unread(where: str, value: Any, is_read: bool, reader: str) -> None:
    """Refuses a field that is set (neither 0 nor '') where nothing reads it."""
    if value and not is_read:
        _refuse(where, f"is set to {value!r} but never read", f"only {reader} reads it: remove it")
