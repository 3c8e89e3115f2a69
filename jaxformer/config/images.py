"""The fields of images, and what else a config may not have beside them."""

import dataclasses
from typing import Any, ClassVar

from jaxformer.config.section import Section, at_least, refuse, unread

CHANNELS = 3  # the default


@dataclasses.dataclass(frozen=True)
class PatchesConfig(Section):
    prefix: ClassVar[str] = "model.patches"

    image_size: int
    patch_size: int
    channels: int

    @property
    def length(self) -> int:
        """The patches of an image and the class token before them."""
        return (self.image_size // self.patch_size) ** 2 + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return self.image_size, self.image_size, self.channels

    def check(self) -> None:
        at_least(self.prefix, self, 1, "image_size", "patch_size", "channels")
        if self.image_size % self.patch_size:
            what = f"{self.patch_size} does not divide image_size = {self.image_size}"
            refuse(f"{self.prefix}.patch_size", what, "images are cut into whole patches")


def check_image_model(model: Any) -> None:
    """Raises UserError where a ModelConfig has fields that images have no use for."""
    unread("model.patches.patch_size", model.patches.patch_size, model.has_images, "image_size")
    channels = model.patches.channels != CHANNELS
    unread("model.patches.channels", channels, model.has_images, "image_size")
    if not model.has_images:
        return
    model.patches.check()
    for name, found, needed in (
        ("architecture", model.architecture, "encoder"),
        ("head.kind", model.head.kind, "sequence"),
        ("position.source.kind", model.position.source.kind, "contiguous"),
    ):
        if found != needed:
            what = f"is {found} while model.patches.image_size = {model.patches.image_size}"
            refuse(f"model.{name}", what, f"images take {needed}")
    unread("model.vocab_size", model.vocab_size, False, "a model of tokens")
    unread("model.scale_embeddings", model.scale_embeddings, False, "a model of tokens")


def check_image_data(data: Any, kind: str) -> None:
    """Raises UserError where a DataConfig has fields that images have no use for."""
    if kind != "sequence_classification":
        mend = "images are for sequence_classification"
        refuse("objective.kind", f"is {kind} while data.source = images", mend)
    for name, value in (
        *(("label_field", data.label_field), ("target_path", data.target_path)),
        *(("source_field", data.source_field), ("target_field", data.target_field)),
        ("validation_target_path", data.validation_target_path),
        *(("mixture.paths", data.mixture.paths), ("streaming", data.streaming)),
        *(("pack", data.pack), ("cache", data.cache), ("target_length", data.target_length)),
    ):
        unread(f"data.{name}", value, False, "a source of texts")
    if data.tokenizer.kind != "word":
        what = f"is {data.tokenizer.kind} while data.source = images"
        refuse("data.tokenizer.kind", what, "leave it at word: images have no tokens")
