"""A model trained here as a folder that the Hugging Face library loads."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from jaxformer.config import ModelConfig, RunConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.interop.family import Extra, Family, Special
from jaxformer.interop.fields import Fields, read_json
from jaxformer.interop.files import write_tensors
from jaxformer.interop.layouts import unstack
from jaxformer.interop.read import DTYPES, FAMILIES
from jaxformer.interop.settings import function_of, model_config
from jaxformer.interop.tokens import special_ids, write_json, write_words
from jaxformer.models import abstract_params, build
from jaxformer.sharding import fit, path_of

REFUSED = "refused"  # what is written could not be read at all


class Run(Protocol):
    """The part of `jaxformer.Run` that is written."""

    @property
    def model(self) -> nnx.Module: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def config(self) -> RunConfig: ...


def to_huggingface(
    run: Run, path: str | os.PathLike[str], *, family: str = "", dtype: str = "float32"
) -> str:
    """Writes safetensors, config.json and tokenizer; returns the family.

    '' finds the first family that says all that the model's config does. Raises UserError, with the
    field, where none does or the one asked for does not.
    """
    if dtype not in DTYPES:
        raise UserError("dtype", f"is {dtype!r}", f"choose from {', '.join(DTYPES)}")
    cfg, folder = run.config.model, Path(path)
    if run.config.objective.kind == "prefix_lm":
        what = "is prefix_lm, whose prompts are read both ways"
        raise UserError("objective.kind", what, "no family of the library does: keep the run")
    special = special_ids(run.tokenizer)
    chosen, fields = _choose(cfg, special, family)
    data = run.config.data
    framed = [
        i for i, is_used in ((special.bos, data.add_bos), (special.eos, data.add_eos)) if is_used
    ]
    if chosen.model_type == "roberta" and (not run.tokenizer.has_pad or special.pad in framed):
        what = "has no token that only pads, by which roberta counts positions"
        raise UserError("tokenizer", what, "export as bert, or give the tokenizer one")
    _make(folder)
    leaves = _leaves(nnx.to_pure_dict(nnx.state(run.model, nnx.Param)))
    tensors = write_params(chosen, cfg, leaves, special, dtype)
    write_tensors(folder, tensors)
    numbers = {"bos": special.bos, "eos": special.eos}
    numbers |= (
        {"pad": special.pad} if run.tokenizer.has_pad or chosen.model_type == "roberta" else {}
    )
    if cfg.architecture == "encoder_decoder":
        numbers["decoder_start"] = special.start
    named = {f"{role}_token_id": i if i >= 0 else None for role, i in numbers.items()}
    write_json(folder / "config.json", fields | named | {"dtype": dtype})
    ends = cfg.architecture != "decoder" and run.config.data.add_eos
    write_words(folder, run.tokenizer, add_bos=run.config.data.add_bos, add_eos=ends)
    return chosen.model_type


def write_params(
    family: Family, cfg: ModelConfig, leaves: Mapping[str, Any], special: Special, dtype: str
) -> dict[str, np.ndarray]:
    """The tensors of a family by name, from parameters by path (scanned layers too)."""
    plain = _leaves(abstract_params(build(_unscanned(cfg))))
    by_layer = unstack(leaves, plain)
    tensors: dict[str, np.ndarray] = {}
    for row in family.rows(cfg, Extra(special.pad)):
        # On a mesh a vocabulary may have rows behind it that are no part of the model.
        parts = [np.asarray(fit(by_layer[path], plain[path].shape)) for path in row.paths]
        found = zip(row.names, row.layout.write(*parts), strict=True)
        tensors |= {name: x.astype(DTYPES[dtype]) for name, x in found}
    return tensors


def _choose(cfg: ModelConfig, special: Special, name: str) -> tuple[Family, dict[str, Any]]:
    """The family that says it all, and its config.json: what is written is read and compared."""
    if name and name not in FAMILIES:
        raise UserError("family", f"is {name!r}", f"choose from {', '.join(FAMILIES)}")
    tried = {}
    for family in [FAMILIES[name]] if name else FAMILIES.values():
        fields = {"model_type": family.model_type} | family.write(cfg, special)
        tried[family.model_type] = differences = _differences(family, cfg, special, fields)
        if not differences:
            return family, fields
    nearest = min(tried, key=lambda family: len(tried[family]))
    field, value = next(iter(tried[nearest].items()))
    if field == REFUSED:
        what = f"cannot be written as {nearest} ({value})"
        raise UserError("model", what, "ask for another family")
    more = f" and {len(tried[nearest]) - 1} more" if len(tried[nearest]) > 1 else ""
    what = f"is {value}, which {nearest}{'' if name else ', the nearest family,'} cannot say"
    raise UserError(f"model.{field}{more}", what, "it cannot be written as such a model")


def _differences(
    family: Family, cfg: ModelConfig, special: Special, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields that would be read back as something else, with what they are here."""
    mine = function_of(cfg)
    try:
        names = {name for row in family.rows(cfg, Extra(special.pad)) for name in row.names}
        values = dict(fields) | {"pad_token_id": special.pad}
        theirs = function_of(model_config(family.read(Fields(Path("config.json"), values), names)))
    except (UserError, KeyError) as error:
        return {REFUSED: str(error), **dict.fromkeys(mine)}
    return {name: value for name, value in mine.items() if theirs.get(name) != value}


def _leaves(tree: Any) -> dict[str, Any]:
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _unscanned(cfg: ModelConfig) -> ModelConfig:
    return dataclasses.replace(cfg, scan_layers=False)


def _make(folder: Path) -> None:
    """Makes the folder, or takes an empty one or one that holds such a model, but nothing else's.

    A run would lose its config and tokenizer, others their weights.
    """
    config, mend = folder / "config.json", "write to another folder"
    is_model = config.exists() and "model_type" in read_json(config)
    if (config.exists() and not is_model) or (folder / "checkpoints").exists():
        raise UserError(str(folder), "holds a run", mend)
    if not is_model and (others := sorted(folder.glob("*.safetensors"))):
        raise UserError(str(folder), f"holds {others[0].name} and no config.json", mend)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be made ({error.strerror})"
        raise UserError(str(folder), what, "choose another folder") from error
