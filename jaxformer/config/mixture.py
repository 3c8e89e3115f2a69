"""Fields of data that come from several sources, or as a stream."""

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config.section import Section, at_least, refuse, unread

STREAMED_TOKENIZERS = ("byte", "file")  # those that need not see the text first


@dataclasses.dataclass(frozen=True)
class MixtureConfig(Section):
    prefix: ClassVar[str] = "data.mixture"

    paths: tuple[str, ...]
    weights: tuple[float, ...]
    end: Literal["repeat", "stop"]

    @property
    def field(self) -> str:
        """The field that names the training data, be they mixed or not."""
        return "data.mixture.paths" if self.paths else "data.path"

    def check(self) -> None:
        where, count = "data.mixture", len(self.paths)
        unread(f"{where}.weights", self.weights, bool(count), "data.mixture.paths")
        if self.end == "stop" and not count:
            refuse(f"{where}.end", "is stop", "only data.mixture.paths reads it: leave it")
        if not all(path.strip() for path in self.paths):
            refuse(f"{where}.paths", "has an empty name", "name the sources")
        if len(set(self.paths)) < count:
            mend = "give each once, with a weight"
            refuse(f"{where}.paths", f"names a source twice: {', '.join(self.paths)}", mend)
        if self.weights and len(self.weights) != count:
            what = f"has {len(self.weights)} for {count} paths"
            refuse(f"{where}.weights", what, "give one for each path, or () for their sizes")
        if any(weight <= 0 for weight in self.weights):
            mend = "give numbers above 0, or leave the source out"
            refuse(f"{where}.weights", f"has {min(self.weights)}", mend)


@dataclasses.dataclass(frozen=True)
class StreamConfig(Section):
    prefix: ClassVar[str] = "data.stream"

    window: int
    validation_documents: int

    def check(self) -> None:
        at_least("data.stream", self, 0, "window", "validation_documents")
        for name in ("window", "validation_documents"):
            if (value := getattr(self, name)) >= 2**31:
                refuse(f"data.stream.{name}", f"is {value}", "give fewer than 2**31 documents")
