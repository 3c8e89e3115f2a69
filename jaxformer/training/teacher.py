"""The teacher of a distillation: another run's model, read once and never changed."""

import dataclasses
from pathlib import Path
from typing import Any

from flax import nnx

from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.workdir import saved_classes
from jaxformer.errors import PUBLISHED, UserError
from jaxformer.run import Run, load
from jaxformer.training.chain import model_digest

WHERE = "objective.distillation.teacher"


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A model and its parameters, placed as a model of that shape is trained.

    `fingerprint` tells its parameters from others, `config` is that of its run.
    """

    graphdef: Any
    params: Any
    fingerprint: str
    config: RunConfig


def load_teacher(cfg: RunConfig, data: Data) -> Teacher | None:
    """The teacher that a resolved config names, on its mesh; None where it names none.

    Raises UserError where it is no run, or its logits are not of the same things as the run's.
    """
    name = cfg.objective.distillation.teacher
    if not name:
        return None
    try:
        run = load(name, mesh=cfg.mesh)
    except UserError as error:
        raise UserError(WHERE, f"{name} cannot be read ({error})", "name the --workdir of a run")
    _check(cfg, data, run, name)
    graphdef, state = nnx.split(run.model)
    return Teacher(graphdef, nnx.to_pure_dict(state), model_digest(run.model), run.config)


def _check(cfg: RunConfig, data: Data, run: Run, name: str) -> None:
    """Raises UserError, which names the teacher, where student and teacher do not fit."""
    its, kind = run.config, cfg.objective.kind
    if not name.startswith(PUBLISHED) and its.objective.kind != kind:
        what = f"{name} was trained on {its.objective.kind}, this run is on {kind}"
        raise UserError(WHERE, what, "name a run of the same objective")
    if run.tokenizer.fingerprint != data.tokenizer.fingerprint:
        what = f"{name} has another vocabulary than this run"
        mend = "its tokenizer.json is one for both: data.tokenizer.kind = file, or train it anew"
        raise UserError(WHERE, what, mend)
    sizes = [(c.model.vocab_size, c.model.head.num_classes) for c in (its, cfg)]
    if sizes[0] != sizes[1]:
        (words, classes), (our_words, our_classes) = sizes
        what = f"{name} has logits of {words} tokens and {classes} classes, this run of "
        what += f"{our_words} and {our_classes}"
        raise UserError(WHERE, what, "give both the same model.vocab_size and classes")
    if cfg.objective.has_labels and saved_classes(Path(name)) != data.classes:
        what = f"{name} has other classes than this run"
        raise UserError(WHERE, what, "train it on the same classes")
    try:
        dataclasses.replace(cfg, model=its.model).check()
    except UserError as error:
        what = f"{name} does not fit this run's data ({error.where}: {error.what})"
        raise UserError(WHERE, what, error.mend)
