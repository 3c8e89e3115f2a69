"""The network's fields."""

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config.section import Section, at_least, positive, refuse

GATED = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu"}


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
        at_least("model", self, 1, "num_layers", "d_model", "num_heads", "max_length")
        at_least("model", self, 0, "num_kv_heads", "head_dim", "d_ff", "vocab_size")
        positive("model", self, "norm_epsilon")
        for name, rate in self.dropout.to_dict().items():
            if not 0 <= rate < 1:
                refuse(f"model.dropout.{name}", f"is {rate}", "give a rate from 0 to below 1")
        if self.num_heads % self.kv_heads:
            refuse(
                "model.num_kv_heads",
                f"{self.kv_heads} does not divide num_heads = {self.num_heads}",
                "query heads share key/value heads in equal groups",
            )
        if not self.head_dim and self.d_model % self.num_heads:
            refuse(
                "model.d_model",
                f"{self.d_model} is not divisible by num_heads = {self.num_heads}",
                "change one of them or set model.head_dim",
            )
        self._check_positions()

    def _check_positions(self) -> None:
        position = self.position
        if position.kind == "sinusoidal":
            positive("model.position.sinusoidal", position.sinusoidal, "base")
            if self.d_model % 2:
                refuse("model.d_model", f"{self.d_model} is odd", "sinusoidal positions need pairs")
        if position.kind == "rope":
            positive("model.position.rope", position.rope, "base")
            fraction, where = position.rope.fraction, "model.position.rope.fraction"
            if not 0 < fraction <= 1:
                refuse(where, f"is {fraction}", "give a share above 0 and up to 1")
            rotated = fraction * self.head_width
            whole = abs(rotated - round(rotated)) < 1e-6  # .29 · 200 is 57.99999999999999
            if not whole or round(rotated) % 2 or not round(rotated):
                refuse(
                    where,
                    f"rotates {rotated:g} of {self.head_width} dimensions of a head",
                    "rotation needs an even whole number of them",
                )
