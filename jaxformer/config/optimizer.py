"""The fields of the optimizer and of its schedule."""

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config.section import Section, at_least, positive, refuse, unread

ENDING = ("warmup_cosine", "linear", "wsd")  # schedules that have a last step


@dataclasses.dataclass(frozen=True)
class MuonConfig(Section):
    prefix: ClassVar[str] = "optimizer.muon"

    rate: float
    weight_decay: float
    momentum: float
    steps: int
    rms: float

    def check(self) -> None:
        positive(self.prefix, self, "rate")
        at_least(self.prefix, self, 0, "weight_decay", "rms")
        at_least(self.prefix, self, 1, "steps")
        if not 0 <= self.momentum < 1:
            refuse(f"{self.prefix}.momentum", f"is {self.momentum}", "give 0 to below 1")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    prefix: ClassVar[str] = "optimizer"

    kind: Literal["adamw", "adam", "muon"]
    b1: float
    b2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    muon: MuonConfig

    def check(self) -> None:
        at_least("optimizer", self, 0, "weight_decay", "clip_norm")
        positive("optimizer", self, "epsilon")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                refuse(f"optimizer.{name}", f"is {getattr(self, name)}", "give 0 to below 1")
        decays = self.kind != "adam"
        unread("optimizer.weight_decay", self.weight_decay, decays, "kind = adamw, muon")
        if self.kind == "muon":
            self.muon.check()


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Section):
    prefix: ClassVar[str] = "schedule"

    kind: Literal["warmup_cosine", "linear", "inverse_sqrt", "wsd", "constant"]
    init_value: float
    peak_value: float
    warmup_steps: int
    decay_steps: int
    cooldown_steps: int
    end_value: float

    @property
    def has_end(self) -> bool:
        """Whether it decays to `end_value` over `decay_steps` in all."""
        return self.kind in ENDING

    def check(self) -> None:
        at_least("schedule", self, 0, "init_value", "end_value", "warmup_steps", "decay_steps")
        at_least("schedule", self, 0, "cooldown_steps")
        positive("schedule", self, "peak_value")
        for name in ("decay_steps", "end_value"):
            value = getattr(self, name)
            unread(f"schedule.{name}", value, self.has_end, f"kind = {', '.join(ENDING)}")
        wsd, warms = self.kind == "wsd", self.warmup_steps > 0
        unread("schedule.cooldown_steps", self.cooldown_steps, wsd, "kind = wsd")
        unread("schedule.init_value", self.init_value, warms, "a warmup (warmup_steps > 0)")
        if self.kind == "inverse_sqrt" and not self.warmup_steps:
            mend = "the rate at step s is peak_value · sqrt(warmup_steps / s): give 1 or more"
            refuse("schedule.warmup_steps", "is 0 while kind = inverse_sqrt", mend)
        if self.decay_steps and self.warmup_steps >= self.decay_steps:
            refuse(
                "schedule.warmup_steps",
                f"{self.warmup_steps} is not below decay_steps = {self.decay_steps}",
                "decay_steps is the whole length, warmup included",
            )
        if self.decay_steps and self.warmup_steps + self.cooldown_steps > self.decay_steps:
            refuse(
                "schedule.cooldown_steps",
                f"{self.cooldown_steps} and warmup_steps = {self.warmup_steps} do not fit into "
                f"decay_steps = {self.decay_steps}",
                "lower one of them",
            )

    def ending_at(self, steps: int) -> "ScheduleConfig":
        """The same with `decay_steps` and `cooldown_steps` filled in for a run of this length."""
        if not self.has_end:
            return self
        total = self.decay_steps or steps
        room = max(1, total - self.warmup_steps)
        cooldown = self.cooldown_steps or min(room, max(1, total // 5))
        cooldown = cooldown if self.kind == "wsd" else 0
        return dataclasses.replace(self, decay_steps=total, cooldown_steps=cooldown)
