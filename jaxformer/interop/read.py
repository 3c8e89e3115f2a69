"""From a folder of the Hugging Face library to a config, parameters and a tokenizer."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import ModelConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.distributed import say
from jaxformer.errors import UserError
from jaxformer.interop.bart import BART
from jaxformer.interop.bert import BERT, ROBERTA
from jaxformer.interop.bloom import BLOOM
from jaxformer.interop.family import Extra, Family
from jaxformer.interop.fields import Fields, read_json
from jaxformer.interop.files import Stored, find_tensors, read_tensor
from jaxformer.interop.gemma2 import GEMMA2
from jaxformer.interop.gpt2 import GPT2
from jaxformer.interop.layouts import Row
from jaxformer.interop.llama import LLAMA, MISTRAL
from jaxformer.interop.llama2c import read_llama2c
from jaxformer.interop.mixtral import MIXTRAL
from jaxformer.interop.qwen3 import QWEN3
from jaxformer.interop.settings import model_config
from jaxformer.interop.t5 import T5
from jaxformer.interop.tokens import Words, first_id, read_words
from jaxformer.models import abstract_params, build
from jaxformer.sharding import params_shardings, path_of

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (GPT2, LLAMA, MISTRAL, MIXTRAL, QWEN3, GEMMA2, BERT, ROBERTA, T5, BART, BLOOM)
}
KEEP = "keep"
DTYPES = {name: jnp.dtype(name) for name in ("float32", "bfloat16", "float16")}
SHOWN = 3  # names in a line


@dataclasses.dataclass(frozen=True)
class Folder:
    """What a folder says before any number is read: all of it is checked."""

    path: Path
    config: ModelConfig
    words: Words | None
    rows: list[tuple[Row, tuple[str, ...]]]  # with the names that the files have
    copies: dict[str, str]  # names of tensors that must equal others
    tensors: dict[str, Stored]


def from_huggingface(
    path: str | os.PathLike[str], *, mesh: Mesh | None = None, dtype: str = "float32"
) -> tuple[ModelConfig, dict[str, Any], Tokenizer | None]:
    """Reads a folder, a safetensors file beside its config.json, or a flat file of llama2.c.

    Parameters are a pure nested dict, as of `models.init`; with a mesh each goes to its shards
    before the next is read. `dtype`: float32, bfloat16, float16, or keep for that of the file (sums
    of tensors, such as 1 + w, are float32 then). The tokenizer is None where there is none. Raises
    UserError for what cannot be said here, by the name of the field, and for damaged files.
    """
    if dtype not in (*DTYPES, KEEP):
        raise UserError("dtype", f"is {dtype!r}", f"choose from {', '.join((*DTYPES, KEEP))}")
    path = Path(path)
    if path.suffix == ".bin":
        cfg, leaves = read_llama2c(path)
        return cfg, place(cfg, leaves.items(), mesh, dtype), None
    folder = open_folder(path)
    params = place(folder.config, read_leaves(folder), mesh, dtype)
    return folder.config, params, None if folder.words is None else folder.words.tokenizer


def open_folder(path: Path) -> Folder:
    """Reads config, tokenizer and headers, and finds a place for every tensor."""
    where = path.parent if path.is_file() else path
    if not path.exists():
        raise UserError(str(path), "does not exist", "give a folder with a config.json")
    file = where / "config.json"
    if not file.exists():
        raise UserError(str(where), "has no config.json", "copy it too")
    values = read_json(file)
    family = _family(file, values.get("model_type"))
    fields, tensors = Fields(file, values), find_tensors(path)
    cfg = _checked(file, family.read(fields, tensors.keys()))
    if cfg.num_layers > len(tensors):  # before so many are built
        what = f"gives {cfg.num_layers} layers, and there are {len(tensors)} tensors"
        raise UserError(str(file), what, "copy both once more")
    if ignored := fields.unread():
        say(f"{file}: fields not known here were not read: {', '.join(ignored)}")
    pad = first_id(values.get("pad_token_id"))
    extra = Extra(1 if pad < 0 else pad, values.get("type_vocab_size") or 2)
    rows, copies = _match(family, cfg, extra, tensors, path)
    words = read_words(where, values)
    if words is not None and (end := words.tokenizer.eos_id) >= cfg.vocab_size:
        what = f"number the end of a text {end} in a vocabulary of {cfg.vocab_size}"
        mend = "eos_token_id, or the tokenizer, is of another model"
        raise UserError(f"{where}: config.json and tokenizer", what, mend)
    return Folder(path, cfg, words, rows, copies, tensors)


def read_leaves(folder: Folder, only: Set[str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, array) in the file's type, from one tensor of the file, or a few, at a time.

    `only` are paths that are wanted: rows without one are not read. Raises UserError.
    """
    for row, names in folder.rows:
        if only is not None and set(only).isdisjoint(row.paths):
            continue
        tensors = [read_tensor(name, folder.tensors[name]) for name in names]
        for name, tensor in zip(names, tensors, strict=True):
            for copy in [c for c, of in folder.copies.items() if of == name]:
                if not np.array_equal(tensor, read_tensor(copy, folder.tensors[copy])):
                    what = f"differs from {name}, with which the config ties it"
                    raise UserError(f"{folder.path}: {copy}", what, "set tie_word_embeddings")
        for path, x in zip(row.paths, row.layout.read(*tensors), strict=True):
            if only is None or path in only:
                yield path, x


def place(cfg: ModelConfig, leaves: Any, mesh: Mesh | None, dtype: str) -> dict[str, Any]:
    """The parameters of a model from (path, array) pairs, each put where it belongs at once."""
    abstract = abstract_params(build(cfg))
    shardings = params_shardings(mesh, abstract)
    wanted = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(abstract)}
    at = dict(zip(wanted, jax.tree.leaves(shardings), strict=True))
    placed: dict[str, jax.Array] = {}
    for path, x in leaves:
        if path in placed or x.shape != wanted[path].shape:
            raise ValueError(f"{path} {x.shape} is read twice or of another shape")
        x = x if dtype == KEEP else x.astype(DTYPES[dtype])
        placed[path] = jax.make_array_from_callback(x.shape, at[path], lambda index, x=x: x[index])
    return jax.tree.unflatten(jax.tree.structure(abstract), [placed[path] for path in wanted])


def _family(file: Path, name: Any) -> Family:
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    what = f"is {name!r}" if name else "is missing"
    mend = f"it is not yet readable: jaxformer reads {', '.join(FAMILIES)}"
    raise UserError(f"{file}: model_type", what, mend)


def _checked(file: Path, changes: Mapping[str, Any]) -> ModelConfig:
    try:
        return model_config(changes)
    except UserError as error:
        what = f"gives {error.where}, which {error.what}"
        raise UserError(str(file), what, error.mend) from error


def _match(
    family: Family, cfg: ModelConfig, extra: Extra, tensors: Mapping[str, Stored], path: Path
) -> tuple[list[tuple[Row, tuple[str, ...]]], dict[str, str]]:
    """The table with the names of the file, and the copies in it.

    Raises UserError where tensors are missing, of another shape, or have no place.
    """
    rows, tied = family.rows(cfg, extra), family.tied(cfg)
    abstract = jax.tree_util.tree_leaves_with_path(abstract_params(build(cfg)))
    shapes = {path_of(keys): leaf.shape for keys, leaf in abstract}
    if sorted(shapes) != sorted(path for row in rows for path in row.paths):
        raise ValueError(f"the table of {family.model_type} is not the model's")
    actual, missing, wrong = {}, [], []
    for row in rows:
        for name, shape in row.shapes(shapes).items():
            found = _find(name, family.prefix, tied, tensors)
            if found is None:
                missing.append(name)
            elif tensors[found].shape != shape:
                what = f"{found} is {list(tensors[found].shape)}, the config says {list(shape)}"
                wrong.append(what)
            actual[name] = found
    copies = {}
    for copy, of in tied.items():
        found = next((n for n in _names(copy, family.prefix) if n in tensors), None)
        if found is not None and found != actual.get(of) and actual.get(of):
            copies[found] = actual[of]
    unused = re.compile(family.unused)
    left = sorted(tensors.keys() - set(actual.values()) - copies.keys())
    read_by_none = [name for name in left if unused.fullmatch(name)]
    extra_names = [name for name in left if not unused.fullmatch(name)]
    problems = [("lacks", missing), ("has no place for", extra_names), ("has other shapes:", wrong)]
    if told := [f"{what} {_some(names)}" for what, names in problems if names]:
        mend = "config.json and weights are not of one model, or of one that cannot be read"
        raise UserError(str(path), "; ".join(told), mend)
    if read_by_none:
        say(f"{path}: not read: {_some(read_by_none)}")
    return [(row, tuple(actual[name] for name in row.names)) for row in rows], copies


def _find(
    name: str, prefix: str, tied: Mapping[str, str], tensors: Mapping[str, Stored]
) -> str | None:
    """What the file calls a tensor: its name, or that of a copy where only that is there."""
    names = [name, *(copy for copy, of in tied.items() if of == name)]
    return next((n for each in names for n in _names(each, prefix) if n in tensors), None)


def _names(name: str, prefix: str) -> list[str]:
    """Forms of a name: of the bare model, and of the first checkpoints of BERT."""
    forms = [name, name.removeprefix(prefix)]
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return forms + [f.replace(new, was) for f in forms for new, was in old.items() if new in f]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
