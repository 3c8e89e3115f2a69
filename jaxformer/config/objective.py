"""What a model is trained to predict."""

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config.section import Section, at_least, positive, refuse
from jaxformer.errors import check_folder

# What each objective takes of a model: its architecture and the kind of its head.
NEEDS = {
    "causal_lm": (("decoder", "lstm"), ("vocabulary",)),
    "prefix_lm": (("decoder",), ("vocabulary",)),
    "masked_lm": (("encoder",), ("vocabulary",)),
    "seq2seq": (("encoder_decoder",), ("vocabulary",)),
    "span_corruption": (("encoder_decoder",), ("vocabulary",)),
    "sequence_classification": (("encoder",), ("sequence",)),
    "token_classification": (("encoder",), ("token",)),
}


@dataclasses.dataclass(frozen=True)
class MaskedLmConfig(Section):
    rate: float
    mask: float
    random: float


@dataclasses.dataclass(frozen=True)
class SpanCorruptionConfig(Section):
    """Raffel et al. 2020 §3.1.4; the numbers are those of T5's code, random_spans_helper."""

    prefix: ClassVar[str] = "objective.span_corruption"

    rate: float
    length: float
    sentinels: int

    def spans(self, tokens: int) -> tuple[int, int]:
        """(hidden tokens, spans of them) of a window of so many tokens; (0, 0) of fewer than 2."""
        if tokens < 2:
            return 0, 0
        hidden = min(max(round(tokens * self.rate), 1), tokens - 1)
        return hidden, min(max(round(hidden / self.length), 1), hidden, tokens - hidden)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Tokens of a window's source and target: each span has a sentinel in both, then </s>."""
        hidden, spans = self.spans(tokens)
        return tokens - hidden + spans + 1, hidden + spans + 1

    def window(self, length: int) -> int:
        """The most tokens whose source fits into `length`."""
        tokens = length - 1
        while self.lengths(tokens + 1)[0] <= length:
            tokens += 1
        return tokens

    def target_length(self, length: int) -> int:
        """Tokens in a row of targets beside sources of `length`."""
        return self.lengths(self.window(length))[1]

    def check(self) -> None:
        at_least(self.prefix, self, 1, "length", "sentinels")
        if not 0 < self.rate < 1:
            refuse(f"{self.prefix}.rate", f"is {self.rate}", "give a share between 0 and 1")

    def check_length(self, length: int) -> None:
        """Raises UserError where a row has more spans than there are sentinels."""
        if length < 4:
            mend = "give 4 or more: a token, a sentinel and </s>"
            refuse("data.length", f"is {length} for span_corruption", mend)
        _, spans = self.spans(self.window(length))
        if spans > self.sentinels:
            what = f"{self.sentinels} is below the {spans} spans of a row of data.length = {length}"
            refuse(f"{self.prefix}.sentinels", what, "raise it, or lower the latter")


@dataclasses.dataclass(frozen=True)
class DistillationConfig(Section):
    prefix: ClassVar[str] = "objective.distillation"

    teacher: str
    alpha: float
    temperature: float

    def check(self) -> None:
        check_folder("objective.distillation.teacher", self.teacher, published=True)
        positive(self.prefix, self, "temperature")
        if not 0 < self.alpha <= 1:
            mend = "give a share above 0 (1: the teacher alone), or set teacher to ''"
            refuse(f"{self.prefix}.alpha", f"is {self.alpha}", mend)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig(Section):
    prefix: ClassVar[str] = "objective"

    kind: Literal[
        "causal_lm",
        "prefix_lm",
        "masked_lm",
        "seq2seq",
        "span_corruption",
        "sequence_classification",
        "token_classification",
    ]
    label_smoothing: float
    smoothing: Literal["all", "others"]
    z_loss: float
    distillation: DistillationConfig
    span_corruption: SpanCorruptionConfig
    masked_lm: MaskedLmConfig

    @property
    def has_pairs(self) -> bool:
        """Examples are a source and a target text."""
        return self.kind == "seq2seq"

    @property
    def has_source(self) -> bool:
        """Rows have tokens for an encoder besides those of the decoder."""
        return self.kind in ("seq2seq", "span_corruption")

    @property
    def has_labels(self) -> bool:
        """Examples are a text and its classes."""
        return self.kind in ("sequence_classification", "token_classification")

    @property
    def is_plain(self) -> bool:
        """What is minimised is the cross-entropy itself."""
        return not self.label_smoothing and not self.z_loss and not self.distillation.teacher

    @property
    def unit(self) -> str:
        """What a loss and an accuracy are means over."""
        return "example" if self.kind == "sequence_classification" else "token"

    def check(self) -> None:
        at_least("objective", self, 0, "label_smoothing", "z_loss")
        if self.label_smoothing >= 1:
            mend = "give a share below 1"
            refuse("objective.label_smoothing", f"is {self.label_smoothing}", mend)
        if self.distillation.teacher:
            self.distillation.check()
        if self.kind == "masked_lm":
            self._check_masking()
        if self.kind == "span_corruption":
            self.span_corruption.check()

    def _check_masking(self) -> None:
        where, masking = "objective.masked_lm", self.masked_lm
        if not 0 < masking.rate < 1:
            refuse(f"{where}.rate", f"is {masking.rate}", "give a share between 0 and 1")
        at_least(where, masking, 0, "mask", "random")
        if masking.mask + masking.random > 1:
            refuse(
                f"{where}.random",
                f"{masking.random} and mask = {masking.mask} are more than 1 together",
                "they are shares of the chosen tokens; the rest is kept",
            )

    def check_model(self, architecture: str, head: str) -> None:
        """Raises UserError where the model cannot be trained on this objective."""
        for name, needed, given in zip(
            ("architecture", "head.kind"), NEEDS[self.kind], (architecture, head), strict=True
        ):
            if given not in needed:
                fits = [
                    kind
                    for kind, (architectures, heads) in NEEDS.items()
                    if architecture in architectures and head in heads
                ]
                refuse(
                    "objective.kind",
                    f"is {self.kind} while model.{name} = {given}",
                    f"set model.{name} = {needed[0]}"
                    + (f", or choose {' or '.join(fits)}" if fits else ""),
                )
