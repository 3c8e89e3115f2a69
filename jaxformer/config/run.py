"""A whole run's fields, and how it is trained."""

import dataclasses
import json
import os
from typing import ClassVar, Literal

from jaxformer.config.data import DataConfig
from jaxformer.config.mesh import MeshConfig, check_spread
from jaxformer.config.model import ModelConfig
from jaxformer.config.objective import ObjectiveConfig
from jaxformer.config.optimizer import OptimizerConfig, ScheduleConfig
from jaxformer.config.section import Section, at_least, refuse, unread
from jaxformer.errors import UserError, check_folder


@dataclasses.dataclass(frozen=True)
class EmaConfig(Section):
    prefix: ClassVar[str] = "train.ema"

    decay: float
    warmup: bool

    def check(self) -> None:
        if not 0 <= self.decay < 1:
            refuse("train.ema.decay", f"is {self.decay}", "give 0 (no average) to below 1")


@dataclasses.dataclass(frozen=True)
class SpikeGuardConfig(Section):
    prefix: ClassVar[str] = "train.spike_guard"

    threshold: float
    decay: float
    warmup_steps: int

    def check(self) -> None:
        at_least("train.spike_guard", self, 0, "threshold")
        at_least("train.spike_guard", self, 2, "warmup_steps")
        if not 0 < self.decay < 1:
            refuse("train.spike_guard.decay", f"is {self.decay}", "give a number between 0 and 1")


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
    init_from: str
    init_paths: tuple[str, ...]
    freeze: tuple[str, ...]
    check_every: int
    ema: EmaConfig
    spike_guard: SpikeGuardConfig

    def check(self) -> None:
        at_least("train", self, 1, "batch_size", "num_microbatches", "log_every", "keep_latest")
        at_least("train", self, 1, "max_skipped_steps")
        at_least("train", self, 0, "num_steps", "num_epochs", "keep_best")
        at_least("train", self, 0, "eval_every", "checkpoint_every", "check_every")
        self.ema.check()
        self.spike_guard.check()
        check_folder("train.init_from", self.init_from, published=True)
        unread("train.init_paths", self.init_paths, bool(self.init_from), "train.init_from")
        if self.init_from and not self.init_paths:
            mend = "name what to take, e.g. ('embedding/*',), or ('*',) for all"
            refuse("train.init_paths", "is empty while train.init_from is set", mend)
        for name in ("init_paths", "freeze"):
            if not all(path.strip() for path in getattr(self, name)):
                refuse(f"train.{name}", "has an empty pattern", "patterns match whole paths")
        if not self.num_steps and not self.num_epochs:
            refuse("train.num_steps", "and train.num_epochs are 0", "give the run an end")
        if self.batch_size % self.num_microbatches:
            refuse(
                "train.num_microbatches",
                f"{self.num_microbatches} does not divide batch_size = {self.batch_size}",
                "microbatches are equal parts of a batch",
            )


@dataclasses.dataclass(frozen=True)
class EvalConfig(Section):
    prefix: ClassVar[str] = "eval"

    batch_size: int
    weights: Literal["raw", "ema"]
    max_rows: int

    def check(self) -> None:
        at_least("eval", self, 1, "batch_size")
        at_least("eval", self, 0, "max_rows")


@dataclasses.dataclass(frozen=True)
class RunConfig(Section):
    seed: int
    compute_dtype: Literal["float32", "bfloat16"]
    model: ModelConfig
    objective: ObjectiveConfig
    data: DataConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    train: TrainConfig
    eval: EvalConfig
    mesh: MeshConfig

    @property
    def data_seed(self) -> int:
        """The seed of all that is drawn of the data."""
        return self.data.seed or self.seed

    def check(self) -> None:
        if not 0 <= self.seed < 2**32:
            refuse("seed", f"is {self.seed}", "give a number from 0 to 4294967295")
        parts = (self.model, self.objective, self.data, self.optimizer, self.schedule, self.train)
        for section in (*parts, self.eval, self.mesh):
            section.check()
        if self.model.attention_kernel == "cudnn" and self.compute_dtype == "float32":
            what = "is cudnn, which takes no compute_dtype = float32"
            refuse("model.attention_kernel", what, "set compute_dtype = bfloat16 or choose auto")
        if self.eval.weights == "ema" and not self.train.ema.decay:
            mend = "set train.ema.decay, e.g. 0.999, or choose raw"
            refuse("eval.weights", "is ema while train.ema.decay = 0", mend)
        self.objective.check_model(self.model.architecture, self.model.head.kind)
        self.data.check_objective(self.objective)
        self._check_images()
        if self.model.position.source.kind == "coupled" and self.data.source != "task":
            what = f"is coupled while data.source = {self.data.source}"
            mend = "the ids are those of a task, such as addition_padded_reversed"
            refuse("model.position.source.kind", what, mend)
        task = self.data.task
        if self.data.source == "task" and task.name != "scan" and not task.num_examples:
            if not self.train.num_steps:
                mend = "data.task.num_examples = 0 draws new examples for ever: give a number"
                refuse("train.num_steps", "is 0", mend)
        if self.data.streaming and self.train.num_epochs:
            mend = "the length of a stream is not known: set it to 0 and give train.num_steps"
            refuse("train.num_epochs", f"is {self.train.num_epochs:g} for a stream", mend)
        self._check_lengths()
        check_spread(self, self.mesh)
        steps = self.train.num_steps
        if self.schedule.has_end and not self.schedule.decay_steps:
            if steps and self.schedule.warmup_steps >= steps:
                refuse(
                    "schedule.warmup_steps",
                    f"{self.schedule.warmup_steps} is not below the run's {steps} steps",
                    "lower it, or set schedule.decay_steps",
                )

    def _check_images(self) -> None:
        patches, source = self.model.patches, self.data.source
        if self.model.has_images != (source == "images"):
            what = f"is {patches.image_size} while data.source = {source}"
            mend = "data.source = images and a model of patches go together"
            refuse("model.patches.image_size", what, mend)
        if self.model.has_images and self.data.length != patches.length:
            what = f"is {self.data.length}, but an image has {patches.length - 1} patches"
            refuse("data.length", what, f"set it to {patches.length}: these and the class token")

    def _check_lengths(self) -> None:
        """Ids that a row of the data may have and the model has not are refused here."""
        longest, position = self.model.max_length, self.model.position
        for name in ("length", "target_length"):
            where, length = f"data.{name}", getattr(self.data, name)
            if length > longest:
                what = f"{length} is more than model.max_length = {longest}"
                refuse(where, what, "raise the latter")
            position.source.check_length(where, length, longest)
            if "learned" in self.model.position_kinds:
                position.source.check_table(where, length, longest)

    def resolve(
        self,
        *,
        vocab_size: int,
        steps_per_epoch: float,
        num_classes: int = 0,
        digits: tuple[int, ...] = (),
    ) -> "RunConfig":
        """Fills what only the data can tell: vocabulary, classes, number of steps, decay steps.

        `digits` are the tokens that abacus positions count.
        """
        asked = self.model.vocab_size, self.model.head.num_classes
        if asked[0] and asked[0] < vocab_size:
            refuse(
                "model.vocab_size",
                f"{asked[0]} is too small for the tokenizer's {vocab_size} tokens",
                "raise it, or set 0 to take the tokenizer's",
            )
        if asked[1] and asked[1] < num_classes:
            refuse(
                "model.head.num_classes",
                f"{asked[1]} is too small for the data's {num_classes} classes",
                "raise it, or set 0 to take the data's",
            )
        replace = dataclasses.replace
        words = 0 if self.model.has_images else asked[0] or vocab_size
        by_epochs = max(1, round(self.train.num_epochs * steps_per_epoch))
        bounds = [self.train.num_steps, by_epochs if self.train.num_epochs else 0]
        steps = min(bound for bound in bounds if bound)
        head = replace(self.model.head, num_classes=asked[1] or num_classes)
        position = self.model.position
        position = replace(position, source=position.source.with_digits(digits))
        data, spans = self.data, self.objective.span_corruption
        if self.objective.kind == "span_corruption":
            data = replace(data, target_length=spans.target_length(data.length))
        resolved = replace(
            self,
            data=data,
            model=replace(self.model, vocab_size=words, head=head, position=position),
            train=replace(self.train, num_steps=steps, num_epochs=0.0),
            schedule=self.schedule.ending_at(steps),
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
