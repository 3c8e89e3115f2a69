"""What a run keeps of its data: the tokenizer and the names of the classes.

Both are written once and used ever after, so that a resumed run and an evaluation have the ids that
the model was trained on. What a refused start left behind binds nobody.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from jaxformer.config import DataConfig, RunConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.distributed import is_first
from jaxformer.errors import UserError


def started(workdir: Path) -> bool:
    """Whether a run has begun here: training writes its config once nothing is refused.

    A checkpoint is later, and tells the same where config.json was lost.
    """
    return (workdir / "config.json").exists() or any((workdir / "checkpoints").glob("[0-9]*"))


def saved_tokenizer(cfg: DataConfig, workdir: Path | None) -> Tokenizer | None:
    """The tokenizer of an earlier start of this run; UserError if the config asks for another."""
    path = None if workdir is None else workdir / "tokenizer.json"
    if path is None or not started(path.parent) or not path.exists():
        return None
    saved, asked = Tokenizer.load(path), cfg.tokenizer
    if asked.kind == "file":
        if os.path.exists(asked.path):
            if Tokenizer.load(asked.path).fingerprint != saved.fingerprint:
                raise _contradiction("data.tokenizer.path", path, "another one")
    elif saved.kind != asked.kind:
        raise _contradiction("data.tokenizer.kind", path, f"of kind {saved.kind}")
    elif asked.kind == "bpe" and saved.vocab_size > asked.vocab_size:
        raise _contradiction("data.tokenizer.vocab_size", path, f"of {saved.vocab_size} tokens")
    return saved


def keep_tokenizer(tokenizer: Tokenizer, workdir: Path) -> None:
    """Saves the tokenizer, or checks that it is the one saved before or by the first process."""
    path = workdir / "tokenizer.json"
    if not started(workdir) and is_first():
        workdir.mkdir(parents=True, exist_ok=True)
        tokenizer.save(path)
    elif Tokenizer.load(path).fingerprint != tokenizer.fingerprint:
        raise _contradiction("data.tokenizer", path, "another one")


def check_special(cfg: RunConfig, tokenizer: Tokenizer) -> None:
    """Raises UserError where a special token is asked for that the tokenizer does not have."""
    found, file = (
        {"add_bos": tokenizer.bos_id, "add_eos": tokenizer.eos_id},
        cfg.data.tokenizer.path,
    )
    for name, token in found.items():
        if cfg.objective.has_source and token < 0:
            what = f"lacks <s> or </s>, which targets of {cfg.objective.kind} have"
            raise UserError(file, what, "name a tokenizer that has both")
        if getattr(cfg.data, name) and token < 0:
            what = f"is true but {file} has no such token"
            raise UserError(f"data.{name}", what, "set it to false")
    if cfg.objective.kind == "masked_lm" and tokenizer.mask_id < 0:
        what = "is masked_lm but the tokenizer has no <mask> and no [MASK]"
        raise UserError("objective.kind", what, "use another tokenizer or another workdir")

    spans = cfg.objective.span_corruption
    if cfg.objective.kind == "span_corruption":
        _, needed = spans.spans(spans.window(cfg.data.length))
        if (count := len(tokenizer.sentinels())) < needed:
            what = f"is span_corruption with {needed} spans, the tokenizer has {count} sentinels"
            mend = "lower data.length, or use a tokenizer with more <extra_id_…> or another workdir"
            raise UserError("objective.kind", what, mend)


def saved_classes(workdir: Path | None) -> tuple[str, ...]:
    """The names of the classes of an earlier start of this run; () if there are none."""
    path = None if workdir is None else workdir / "classes.json"
    if path is None or not started(path.parent) or not path.exists():
        return ()
    try:
        return tuple(map(str, json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", "use a new workdir")


def keep_classes(classes: Sequence[str], workdir: Path) -> None:
    """Saves the names of the classes, whole or not at all."""
    path = workdir / "classes.json"
    if is_first() and not (started(workdir) and path.exists()):
        workdir.mkdir(parents=True, exist_ok=True)
        temporary = workdir / f"classes.json.{os.getpid()}.tmp"
        names = json.dumps(list(classes), ensure_ascii=False, indent=1)
        temporary.write_text(names + "\n", encoding="utf-8")
        os.replace(temporary, path)


def _contradiction(where: str, path: Path, what: str) -> UserError:
    return UserError(
        where,
        f"asks for a tokenizer other than the run's: {path} is {what}",
        "use the run's settings or a new workdir",
    )
