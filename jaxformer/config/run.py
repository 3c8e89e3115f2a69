"""A whole run's fields, and how it is trained."""

import dataclasses
import json
import os
from typing import ClassVar, Literal

from jaxformer.config.data import DataConfig
from jaxformer.config.model import ModelConfig
from jaxformer.config.section import Section, at_least, positive, refuse, unread
from jaxformer.errors import UserError


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
        at_least("optimizer", self, 0, "weight_decay", "clip_norm")
        positive("optimizer", self, "epsilon")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                refuse(f"optimizer.{name}", f"is {getattr(self, name)}", "give 0 to below 1")


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
        at_least("schedule", self, 0, "init_value", "end_value", "warmup_steps", "decay_steps")
        positive("schedule", self, "peak_value")
        if self.kind == "constant":
            for name in ("init_value", "warmup_steps", "decay_steps", "end_value"):
                unread(f"schedule.{name}", getattr(self, name), False, "kind = warmup_cosine")
        elif self.decay_steps and self.warmup_steps >= self.decay_steps:
            refuse(
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
        at_least("train", self, 1, "batch_size", "num_microbatches", "log_every", "keep_latest")
        at_least("train", self, 1, "max_skipped_steps")
        at_least("train", self, 0, "num_steps", "num_epochs", "keep_best")
        at_least("train", self, 0, "eval_every", "checkpoint_every")
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
    max_rows: int

    def check(self) -> None:
        at_least("eval", self, 1, "batch_size")
        at_least("eval", self, 0, "max_rows")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section):
    prefix: ClassVar[str] = "mesh"

    data: int
    fsdp: int

    def check(self) -> None:
        sizes = self.to_dict()
        for name, size in sizes.items():
            if size < 1 and size != -1:
                refuse(f"mesh.{name}", f"is {size}", "give a number of devices, or -1 for the rest")
        if list(sizes.values()).count(-1) > 1:
            refuse("mesh", f"has more than one -1: {sizes}", "give all sizes but one")


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
            refuse("seed", f"is {self.seed}", "give a number from 0 to 4294967295")
        parts = (self.model, self.data, self.optimizer, self.schedule, self.train, self.eval)
        for section in (*parts, self.mesh):
            section.check()
        if self.data.length > self.model.max_length:
            refuse(
                "data.length",
                f"{self.data.length} is more than model.max_length = {self.model.max_length}",
                "raise the latter",
            )
        steps = self.train.num_steps
        if self.schedule.kind == "warmup_cosine" and not self.schedule.decay_steps:
            if steps and self.schedule.warmup_steps >= steps:
                refuse(
                    "schedule.warmup_steps",
                    f"{self.schedule.warmup_steps} is not below the run's {steps} steps",
                    "lower it, or set schedule.decay_steps",
                )

    def resolve(self, *, vocab_size: int, steps_per_epoch: float) -> "RunConfig":
        """Fills what only the data can tell: vocabulary size, number of steps, decay steps."""
        if self.model.vocab_size and self.model.vocab_size < vocab_size:
            refuse(
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
