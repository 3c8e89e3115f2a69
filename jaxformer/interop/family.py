"""What a family of models is here: how its config.json and its tensors are read and written."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import Row

# Their names of activations -> ours; the first of each is the one that is written.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu_pytorch_tanh": "geglu",
    "gelu_new": "geglu",
    "relu": "reglu",
}


def theirs(names: dict[str, str], ours: str) -> str:
    """What the family calls one of our values; our own name where it has none.

    `to_huggingface` reads what it would write and compares, which refuses the latter.
    """
    return next((name for name, value in names.items() if value == ours), ours)


@dataclasses.dataclass(frozen=True)
class Special:
    """Ids that a config.json names; -1: none. `start` begins the targets of an encoder-decoder."""

    pad: int
    bos: int
    eos: int
    start: int


@dataclasses.dataclass(frozen=True)
class Extra:
    """What a table needs to know beside the config: the padding id, kinds of sentences in a row."""

    pad_id: int
    token_types: int = 1


@dataclasses.dataclass(frozen=True)
class Family:
    """One module a family makes one of these.

    `read` gives the changes of configs/base.py's model by path, from a config.json and the names
    of the tensors that are there; `rows` the table for a config; `write` the fields of a
    config.json. `prefix` is left out of names in files of the bare model. `tied` are names of
    copies, with what they copy; `unused` a regular expression of tensors that are no part of what
    is read here (buffers; heads for another task).
    """

    model_type: str
    read: Callable[[Fields, Collection[str]], dict[str, Any]]
    rows: Callable[[ModelConfig, Extra], list[Row]]
    write: Callable[[ModelConfig, Special], dict[str, Any]]
    prefix: str
    tied: Callable[[ModelConfig], dict[str, str]]
    unused: str
