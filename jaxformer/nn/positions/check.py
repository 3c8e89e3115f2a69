"""Tries a position encoding: python -m jaxformer.nn.positions.check mymodule:MyEncoding

Prints what was tried, whether it holds and the first counterexample. A command that no module
imports: it needs whole models, so it stands above `nn` in the order of imports.
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxformer.analysis.position_properties import counterexample, properties, undeclared
from jaxformer.analysis.subjects import Subject, make_subject, shrink
from jaxformer.config import ModelConfig
from jaxformer.errors import UserError

PASSED, FAILED, BAD_INPUT = 0, 1, 2
BASE = str(Path(__file__).resolve().parents[3] / "configs" / "base.py")
DECODER = {"architecture": "decoder"}
# Models that must do all of it too; a row of the table for each.
VARIANTS: dict[str, dict[str, Any]] = {
    "all of it in an encoder": {"architecture": "encoder"},
    "all of it in an encoder-decoder": {"architecture": "encoder_decoder"},
    "all of it in a window, with a single key head": {"num_kv_heads": 1, "window": 3},
}


def read_model(kind: str, path: str) -> ModelConfig:
    """The model of a config file, with the encoding `kind`. Raises UserError."""
    try:
        model = runpy.run_path(path)["get_config"]().model
    except Exception as error:  # whatever the user's file raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(path, f"cannot be loaded ({reason})", "give a config file") from error
    model.position.kind = kind
    return ModelConfig.from_config_dict(model)


def check(cfg: ModelConfig) -> Iterator[tuple[str, str | None]]:
    """Each property with its first counterexample, None where it holds. Raises UserError."""

    def tried(subject: Subject) -> Iterator[tuple[str, str | None]]:
        return ((what, counterexample(p, subject)) for what, p in properties(subject).items())

    yield from tried(make_subject(shrink(cfg, DECODER)))
    for name, changes in VARIANTS.items():
        subject = make_subject(shrink(cfg, DECODER | changes))
        failed = (f"{what}: {found}" for what, found in tried(subject) if found)
        yield name, next(failed, None)


def report(cfg: ModelConfig, show: Callable[[str], None] = print) -> int:
    """Prints the table as it grows, and what holds undeclared; returns the exit status."""
    subject = make_subject(shrink(cfg, DECODER))
    encoding, of_length = subject.encoding, f" of max_length {subject.cfg.max_length}"
    names = ("at_input", "shift_invariant", "trained", "cacheable")
    declared = {name: getattr(encoding, name) for name in names} | {"bound": subject.bound}
    told = ", ".join(f"{name} {value}" for name, value in declared.items())
    show(f"{cfg.position.kind}: {told}{of_length if subject.bound else ''}\n")
    show(f"{'property':46}result  first counterexample")
    failures = 0
    for what, found in check(cfg):
        failures += found is not None
        show(f"{what:46}{'FAILED' if found else 'passed'}  {found or ''}".rstrip())
    show(f"\n{f'{failures} failed' if failures else 'all passed'}")
    for text in undeclared(subject):
        show(f"warning: not declared, but holds: {text}")
    return FAILED if failures else PASSED


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m jaxformer.nn.positions.check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", help="module:Class of your own, or a kind of ours such as rope")
    parser.add_argument(
        "--config", default=BASE, help="a config file whose model's options are kept, made tiny"
    )
    flags = parser.parse_args(argv)
    try:
        return report(read_model(flags.kind, flags.config))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
