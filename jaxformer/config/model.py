"""The network's fields."""

import dataclasses
import difflib
from typing import ClassVar, Literal

from jaxformer.config.images import PatchesConfig, check_image_model
from jaxformer.config.layers import LayerSpec, parse_layer_pattern
from jaxformer.config.lstm import check_lstm
from jaxformer.config.moe import MoeConfig
from jaxformer.config.position import (
    CONTENT_POSITIONS,
    INPUT_POSITIONS,
    LAYER_POSITIONS,
    OWN_POSITION,
    TABLE_POSITIONS,
    PositionConfig,
    check_others,
    check_rope,
    check_t5,
)
from jaxformer.config.section import Section, at_least, positive, refuse, unread

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
class HeadConfig(Section):
    kind: Literal["vocabulary", "sequence", "token"]
    transform: bool
    num_classes: int
    pooling: Literal["first", "mean"]
    pooler: bool


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section):
    prefix: ClassVar[str] = "model"

    architecture: Literal["decoder", "encoder", "encoder_decoder", "lstm"]
    num_layers: int
    num_encoder_layers: int
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
    embedding_norm: bool
    residual: bool
    attention_bias: bool
    attention_output_bias: bool
    feed_forward_bias: bool
    head_bias: bool
    scale_attention: bool
    qk_norm: bool
    attention_softcap: float
    logit_softcap: float
    attention_sink: bool
    attention_kernel: Literal["auto", "reference", "chunked", "blockwise", "cudnn", "splash"]
    window: int
    layer_pattern: str
    tie_embeddings: bool
    share_embeddings: bool
    scale_embeddings: bool
    scale_logits: bool
    initializer: Literal["gpt2", "bert", "xavier", "t5", "lecun"]
    scan_layers: bool
    remat: Literal["none", "full", "dots"]
    logit_chunk: int
    layernorm: LayerNormConfig
    patches: PatchesConfig
    head: HeadConfig
    dropout: DropoutConfig
    moe: MoeConfig
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
    def expert_width(self) -> int:
        """The hidden layer's of each expert."""
        return self.moe.d_ff or self.ff_width

    @property
    def encoder_layers(self) -> int:
        """Layers of the encoder; 0 where there is none."""
        if self.architecture in ("decoder", "lstm"):
            return 0
        return self.num_encoder_layers or self.num_layers

    def layer_specs(self, num_layers: int) -> tuple[LayerSpec, ...]:
        """One for each layer: the pattern, repeated as often as it takes."""
        if self.architecture == "lstm":
            return (LayerSpec("none", 0),) * num_layers
        specs = parse_layer_pattern(self.layer_pattern)
        specs = specs or (LayerSpec(self.position.kind, self.window),)
        moe, found = self.moe, []
        for i in range(num_layers):
            experts = moe.num_experts > 0 and (i + 1) % moe.every == 0
            found.append(dataclasses.replace(specs[i % len(specs)], experts=experts))
        return tuple(found)

    @property
    def position_kinds(self) -> tuple[str, ...]:
        """The encodings in use, the one of `position.kind` first."""
        if self.architecture == "lstm":
            return ("none",)
        kinds = [self.position.kind, *(s.position for s in parse_layer_pattern(self.layer_pattern))]
        return tuple(dict.fromkeys(kinds))

    @property
    def has_images(self) -> bool:
        """The input is images, not tokens."""
        return self.patches.image_size > 0

    @property
    def has_final_norm(self) -> bool:
        if self.final_norm == "auto":
            return self.norm_placement in ("pre", "sandwich")
        return self.final_norm == "true"

    def check(self) -> None:
        at_least("model", self, 1, "num_layers", "d_model", "num_heads", "max_length")
        at_least("model", self, 0, "num_kv_heads", "head_dim", "d_ff", "vocab_size", "window")
        at_least("model", self, 0, "num_encoder_layers", "attention_softcap", "logit_softcap")
        at_least("model", self, 0, "logit_chunk")
        positive("model", self, "norm_epsilon")
        for name, rate in self.dropout.to_dict().items():
            if not 0 <= rate < 1:
                refuse(f"model.dropout.{name}", f"is {rate}", "give a rate from 0 to below 1")
        check_image_model(self)
        self.moe.check()
        if self.architecture == "lstm":
            check_lstm(self)
            self._check_head()
            return
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
        both = self.architecture == "encoder_decoder"
        unread("model.num_encoder_layers", self.num_encoder_layers, both, "encoder_decoder")
        self._check_head()
        self._check_layers()
        self._check_positions()

    def _check_head(self) -> None:
        head, words = self.head, self.head.kind == "vocabulary"
        if not words and self.architecture != "encoder":
            refuse(
                "model.head.kind",
                f"is {head.kind} while model.architecture = {self.architecture}",
                "only encoders classify: a decoder's head is vocabulary",
            )
        at_least("model.head", head, 0, "num_classes")
        unread("model.head.num_classes", head.num_classes, not words, "head.kind = sequence, token")
        unread("model.head.transform", head.transform, words, "head.kind = vocabulary")
        if not head.pooler and head.kind != "sequence":
            what = f"is false while model.head.kind = {head.kind}"
            refuse("model.head.pooler", what, "only sequence has one: set it to true")
        unread("model.logit_softcap", self.logit_softcap, words, "head.kind = vocabulary")
        unread("model.logit_chunk", self.logit_chunk, words, "head.kind = vocabulary")
        unread("model.head_bias", self.head_bias, words, "head.kind = vocabulary")
        unread("model.scale_logits", self.scale_logits, words, "head.kind = vocabulary")
        if head.transform and self.activation in GATED:
            refuse(
                "model.head.transform",
                f"has no gate for model.activation = {self.activation}",
                "choose relu, gelu, gelu_exact or silu",
            )

    def _check_layers(self) -> None:
        specs = parse_layer_pattern(self.layer_pattern)
        if specs and self.window:
            refuse(
                "model.window",
                f"is {self.window} while model.layer_pattern gives windows by layer",
                "leave one of them out",
            )
        fewest = min(self.num_layers or self.encoder_layers, self.encoder_layers or self.num_layers)
        if len(specs) > fewest:
            refuse(
                "model.layer_pattern",
                f"describes {len(specs)} layers, the model has {fewest}",
                "shorten it: a pattern is repeated, not cut",
            )
        self.moe.check_layers(fewest, self.scan_layers, self.d_ff)
        if self.scan_layers and len(set(specs)) > 1:
            refuse(
                "model.scan_layers",
                "is true while model.layer_pattern makes layers differ",
                "set it to false: scanned layers are equal",
            )

    def _check_positions(self) -> None:
        position, own = self.position, any(map(OWN_POSITION.fullmatch, self.position_kinds))
        kinds = ("none", *INPUT_POSITIONS, *LAYER_POSITIONS[1:])
        if position.kind not in kinds and not OWN_POSITION.fullmatch(position.kind):
            near = difflib.get_close_matches(position.kind, kinds, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            mend = f"{hint}choose from {', '.join(kinds)}, or your own module:Class"
            refuse("model.position.kind", f"is {position.kind!r}", mend)
        used = {spec.position for spec in parse_layer_pattern(self.layer_pattern)}
        if used and position.kind not in {*used, "none", *INPUT_POSITIONS}:
            mend = "choose one of the pattern's, none, or one that is added to the embeddings"
            what = f"is {position.kind}, which no layer of model.layer_pattern has"
            refuse("model.position.kind", what, mend)
        unread("model.position.options", position.options, own, "a position of your own")
        position.source.check()
        position.source.check_steps(self.max_length)
        if position.kind == "sinusoidal":
            positive("model.position.sinusoidal", position.sinusoidal, "base")
            if self.d_model % 2:
                refuse("model.d_model", f"{self.d_model} is odd", "sinusoidal positions need pairs")
        at_least("model.position", position, 0, "logn_length")
        if position.logn_length == 1:
            refuse("model.position.logn_length", "is 1, whose logarithm is 0", "give 2 or more")
        if position.logn_length and position.source.kind == "random_float":
            what = f"is {position.logn_length}, a number of tokens, while positions are drawn"
            refuse("model.position.logn_length", what, "leave it 0 with source.kind = random_float")
        if {"rope", "xpos"} & set(self.position_kinds):
            check_rope(position.rope, self.head_width)
            scaling, source = position.rope.scaling.kind, position.source.kind
            if scaling == "dynamic_ntk" and source in ("abacus", "coupled", "random_float"):
                refuse(
                    "model.position.rope.scaling.kind",
                    f"is {scaling} while model.position.source.kind = {source}",
                    "the largest id is not the length of a text: choose another",
                )
        if "t5" in self.position_kinds:
            check_t5(position.t5, bidirectional=self.architecture != "decoder")
        check_others(position, self.position_kinds, self.num_heads)
        self._check_content()

    def _check_content(self) -> None:
        """Encodings that not every kernel or position source can serve."""
        kernel, source = self.attention_kernel, self.position.source.kind
        for kind in self.position_kinds:
            if kind in CONTENT_POSITIONS and kernel not in ("auto", "reference"):
                what = f"is {kernel}, which has no biases that queries decide, as {kind} needs"
                refuse("model.attention_kernel", what, "choose auto or reference")
            if kind in TABLE_POSITIONS and source == "random_float":
                what = f"is {source}, between whole positions, while {kind} looks up whole ones"
                refuse("model.position.source.kind", what, "choose randomized, or another encoding")
