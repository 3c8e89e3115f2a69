"""The rules of the code base that a machine can check: who imports whom, sizes, dead fields.

The table is the right-hand column of the design: a unit may import what stands beside it and
whatever those may import in turn, at the top of a file or inside a function.
"""

import ast
import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from configs import base
from jaxformer.config import RunConfig

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jaxformer"
SOURCES = {path.relative_to(ROOT).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
MAX_LINES, MAX_ARGUMENTS = 300, 8

DIRECT: dict[str, set[str]] = {
    "errors": set(),
    "command": {"errors"},
    "distributed": {"errors"},
    "globs": {"errors"},
    "config": {"errors"},
    "mesh": {"config"},
    "sharding": {"config", "distributed", "mesh"},
    "checkpoint": {"config", "sharding", "globs"},
    "losses": set(),
    "nn": {"config", "sharding"},
    "models": {"nn", "losses"},
    "data": {"config", "sharding"},
    "generation": {"models"},
    "evaluation": {"generation", "data", "checkpoint", "losses"},
    "training": {"models", "data", "evaluation", "checkpoint", "losses", "command", "run"},
    "aot": {"training", "analysis"},
    "experiments": {"training", "evaluation", "analysis", "run", "progress"},
    "interop": {"models", "data", "globs"},
    "analysis": {"models"},
    "run": {"models", "data", "checkpoint", "interop"},
    "progress": set(),
}
EVERYTHING = set(DIRECT)
DIRECT |= {"__init__": EVERYTHING, "cli": EVERYTHING | {"__init__"}}

# Commands that nothing imports may stand above their unit: what they may import besides. They have
# the names that users expect: one tries a user's position encoding in whole models, one looks into
# a trained run.
COMMANDS = {
    "jaxformer/nn/positions/check.py": {"analysis"},
    "jaxformer/analysis/attention.py": {"evaluation", "run", "command"},
}

# Outside the package: for tests only, or above it.
FORBIDDEN = {"torch", "tensorflow", "clu", "sklearn", "transformers", "tests", "configs"}
FORBIDDEN |= {"train", "eval", "sweep"}
# Imported where it is asked for by name, and refused in one line where it is not installed.
OPTIONAL = {"jaxformer/data/images.py": {"sklearn"}}


def allowed(unit: str) -> set[str]:
    """The units that a unit may import: itself, its row of the table, and their rows."""
    found, waiting = set(), {unit}
    while waiting:
        found.add(name := waiting.pop())
        waiting |= DIRECT[name] - found
    return found


def unit_of(path: str) -> str:
    """'jaxformer/nn/norm.py' and 'jaxformer/nn/__init__.py' are of unit nn."""
    return path.removesuffix(".py").split("/")[1]


def imported(path: str, tree: ast.AST) -> list[tuple[int, str]]:
    """(line, absolute module name) of everything imported; `from a import b` counts as a.b."""
    package = path.removesuffix(".py").split("/")[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            parts = [*above, *([node.module] if node.module else [])]
            found += [(node.lineno, ".".join([*parts, alias.name])) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            target = node.args[0]
            if name in ("import_module", "__import__") and isinstance(target, ast.Constant):
                found.append((node.lineno, str(target.value)))
    return found


def import_problems(path: str, source: str) -> list[str]:
    unit, problems = unit_of(path), []
    if unit not in DIRECT:
        return [f"{path}: jaxformer.{unit} is not in the table of tests/test_layering.py"]
    may_import = allowed(unit).union(*map(allowed, COMMANDS.get(path, ())))
    commands = [command.removesuffix(".py").replace("/", ".") for command in COMMANDS]
    for line, name in imported(path, ast.parse(source)):
        top, _, rest = name.partition(".")
        if any(name == command or name.startswith(f"{command}.") for command in commands):
            problems.append(f"{path}:{line}: imports the command {name}")
        if top in FORBIDDEN - OPTIONAL.get(path, set()):
            problems.append(f"{path}:{line}: imports {name}: not at run time, nor from above")
        if top == "jaxformer":
            target = rest.split(".")[0]
            target = target if target in DIRECT else "__init__"
            if target not in may_import:
                problems.append(f"{path}:{line}: {unit} may not import {name}")
    return problems


def shape_problems(path: str, source: str) -> list[str]:
    problems = []
    if path.endswith(("/utils.py", "/util.py", "/helpers.py")):
        problems.append(f"{path}: name a module after what it does")
    if (lines := source.count("\n")) > MAX_LINES:
        problems.append(f"{path}: {lines} lines: split it")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{path}:{node.lineno}: {node.name}"
            if node.args.kwarg:
                problems.append(f"{where} takes **{node.args.kwarg.arg}: name its arguments")
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = {argument.arg for argument in arguments} - {"self", "cfg", "rngs"}
            if node.name == "__init__" and len(names) > MAX_ARGUMENTS:
                problems.append(f"{where} takes {len(names)} arguments")
    return problems


@pytest.mark.parametrize("path", SOURCES)
def test_module(path: str) -> None:
    source = SOURCES[path].read_text(encoding="utf-8")
    assert import_problems(path, source) + shape_problems(path, source) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("jaxformer/nn/norm.py", "from jaxformer.models import build"),
        ("jaxformer/nn/norm.py", "from jaxformer import models"),
        ("jaxformer/nn/norm.py", "from jaxformer import load"),
        ("jaxformer/nn/norm.py", "import jaxformer.training.step as step"),
        ("jaxformer/nn/norm.py", "def f():\n    from jaxformer.data import loader"),
        ("jaxformer/nn/norm.py", "from ..models import build"),
        ("jaxformer/nn/positions/rope.py", "from ...cli import main"),
        ("jaxformer/losses.py", "from jaxformer.errors import UserError"),
        ("jaxformer/config.py", "from .sharding import make_mesh"),
        ("jaxformer/data/loader.py", "import importlib\nimportlib.import_module('jaxformer.cli')"),
        ("jaxformer/models/decoder.py", "import torch.nn"),
        ("jaxformer/cli.py", "from configs import base"),
        ("jaxformer/newcomer.py", "x = 1"),
        ("jaxformer/nn/positions/rope.py", "from jaxformer.analysis import subjects"),
        ("jaxformer/nn/positions/check.py", "from jaxformer.data import loader"),
        ("jaxformer/models/trunk.py", "from jaxformer.nn.positions.check import main"),
        ("jaxformer/training/loop.py", "from jaxformer.nn.positions import check"),
    ],
)
def test_a_planted_import_is_found(path: str, source: str) -> None:
    assert len(import_problems(path, source)) == 1


def test_what_the_table_allows_passes() -> None:
    source = "from jaxformer.nn.norm import LayerNorm\nfrom ..errors import UserError\nimport jax"
    assert import_problems("jaxformer/training/step.py", source) == []
    assert import_problems("jaxformer/nn/block.py", "from .norm import LayerNorm") == []


def test_planted_shapes_are_found() -> None:
    wide = "class A:\n    def __init__(self, cfg, a, b, c, d, e, f, g, h, *, rngs, i=0): ..."
    fine = wide.replace(", i=0", "")
    assert shape_problems("jaxformer/a.py", fine) == []
    assert len(shape_problems("jaxformer/a.py", wide)) == 1
    assert len(shape_problems("jaxformer/a.py", "def f(**kwargs): ...")) == 1
    assert len(shape_problems("jaxformer/data/utils.py", "")) == 1
    assert len(shape_problems("jaxformer/a.py", "\n" * (MAX_LINES + 1))) == 1


def leaves(values: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], type]:
    """Path → type of each field of a config."""
    if not hasattr(values, "items"):
        return {prefix: type(values)}
    found = {}
    for name, value in values.items():
        found |= leaves(value, (*prefix, name))
    return found


def declared(section: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Path → class of the section that declares each field of the dataclasses."""
    found = {}
    hints = get_type_hints(section)
    for field in dataclasses.fields(section):
        kind, path = hints[field.name], (*prefix, field.name)
        found |= declared(kind, path) if dataclasses.is_dataclass(kind) else {path: section}
    return found


def reads(tree: ast.AST) -> tuple[set[str], set[str]]:
    """(attributes that are read, all words: names, attributes, arguments) in a piece of code."""
    attributes, words = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            words.add(node.attr)
            if isinstance(node.ctx, ast.Load):
                attributes.add(node.attr)
        elif isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.arg):
            words.add(node.arg)
    return attributes, words


def unread(fields: dict[tuple[str, ...], Any], sources: dict[str, str]) -> list[str]:
    """Fields that no module reads which also speaks of the field's section.

    In config.py checks are no readers. A property of a section counts for the fields it reads, if
    another module reads the property.
    """
    readers, through = [], defaultdict(set)
    for path, source in sources.items():
        tree = ast.parse(source)
        if unit_of(path) != "config":
            readers.append(reads(tree))
            continue
        for owner in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            for method in [node for node in owner.body if isinstance(node, ast.FunctionDef)]:
                if method.name == "resolve":
                    readers.append(reads(method))
                elif any(getattr(mark, "id", "") == "property" for mark in method.decorator_list):
                    for attribute in reads(method)[0]:
                        through[owner.name, attribute].add(method.name)
    found = []
    for (*above, name), section in fields.items():
        spoken = {section.__name__, *above[-1:]} if above else set()
        names = {name} | through[section.__name__, name]
        if not any(names & read and (not spoken or spoken & words) for read, words in readers):
            found.append(".".join([*above, name]))
    return found


def test_base_config_and_dataclasses_have_the_same_fields() -> None:
    assert set(leaves(base.get_config())) == set(declared(RunConfig))


def test_every_field_is_read_by_something() -> None:
    texts = {path: file.read_text(encoding="utf-8") for path, file in SOURCES.items()}
    users = ["model.position.options"]  # what a position encoding of the user's own reads
    assert unread(declared(RunConfig), texts) == users


def test_a_planted_dead_field_is_found() -> None:
    @dataclasses.dataclass
    class Rope:
        base: float
        scale: float

    @dataclasses.dataclass
    class Config:
        rope: Rope
        seed: int

    # Annotations of local classes: resolved by hand.
    fields = {("rope", "base"): Rope, ("rope", "scale"): Rope, ("seed",): Config}
    source = "def f(cfg):\n    return cfg.rope.base + cfg.seed"
    assert unread(fields, {"jaxformer/a.py": source}) == ["rope.scale"]
    elsewhere = "def g(image):\n    return image.scale"  # the same word, of something else
    sources = {"jaxformer/a.py": source, "jaxformer/b.py": elsewhere}
    assert unread(fields, sources) == ["rope.scale"]
    written = {"jaxformer/a.py": source + "\ndef h(cfg):\n    cfg.rope.scale = 2"}
    assert unread(fields, written) == ["rope.scale"]
    checked = "class Rope:\n    def check(self):\n        assert self.scale"
    assert unread(fields, {"jaxformer/a.py": source, "jaxformer/config.py": checked}) == [
        "rope.scale"
    ]
