"""The project's own files: no traces of a machine, a true file tree, pins that are only pins."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
# Written in pieces, so that this file does not hold what it looks for.
TRACES = [
    *("/" + name + "/" for name in ("work", "root", "home", "opt", "Users")),
    *("file:" + "//", "index" + "-url", "find" + "-links", "trusted" + "-host"),
]
PRIVATE_ADDRESS = re.compile(r"\b(10\.\d+|192\.168|172\.(1[6-9]|2\d|3[01]))\.\d+\.\d+\b")
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.]*")


def tracked() -> list[str]:
    """Paths of the files that git tracks and that still exist."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def traces(text: str) -> list[str]:
    """The lines that name a path of one machine or an address inside one network."""
    return [
        line
        for line in text.splitlines()
        if any(trace in line for trace in TRACES) or PRIVATE_ADDRESS.search(line)
    ]


def tree_paths(readme: str) -> list[str] | None:
    """Paths of the file tree: the first fenced block that has a line starting with jaxformer/.

    A line is indentation (blanks or │├└─), one name (folders end with /), two blanks, a phrase.
    """
    for block in re.findall(r"^```\w*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL):
        if not re.search(r"^\W*jaxformer/(\s|$)", block, re.MULTILINE):
            continue
        paths, open_folders = [], []
        for line in block.splitlines():
            if found := re.match(r"[\s│├└─|`-]*", line):
                depth, name = found.end(), line[found.end() :].split("  ")[0].strip()
                open_folders = [(d, f) for d, f in open_folders if d < depth]
                if name:
                    paths.append("".join(folder for _, folder in open_folders) + name)
                if name.endswith("/"):
                    open_folders.append((depth, name))
        return paths
    return None


def is_listed(path: str) -> bool:
    """Whether the tree has a line for this file: sources, but not each test and empty package."""
    return (
        path.endswith(".py")
        and not path.startswith("tests/")
        and bool((ROOT / path).stat().st_size)
    )


def test_no_traces_of_a_machine() -> None:
    found = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}: {line.strip()}" for line in traces(text)]
    assert found == []


@pytest.mark.parametrize("trace", [*TRACES, "http://192.168." + "0.7:80", "10." + "1.2.3"])
def test_planted_traces_are_found(trace: str) -> None:
    assert traces(f"first\nsee {trace} there") == [f"see {trace} there"]


def test_harmless_addresses_are_no_traces() -> None:
    assert traces("127.0.0.1:80\n../shared/data\nversion 10.1\n110.1.2.3") == []


def test_the_readme_tree_is_true() -> None:
    readme = ROOT / "README.md"
    tree = tree_paths(readme.read_text(encoding="utf-8")) if readme.exists() else None
    if tree is None:
        pytest.skip("README.md has no file tree yet")
    files = tracked()
    assert sorted(tree) == sorted(set(tree)), "listed twice"
    missing = [path for path in files if is_listed(path) and path not in tree]
    folders = {f"{parent}/" for name in files for parent in Path(name).parents}
    gone = [path for path in tree if path not in folders.union(files)]
    assert (missing, gone) == ([], [])


def test_tree_paths_reads_both_styles() -> None:
    plain = """
train.py     trains
jaxformer/
  nn/        parts
    a.py     one
  b.py  two
"""
    boxes = """
├── train.py  trains
├── jaxformer/
│   ├── nn/  parts
│   │   └── a.py  one
│   └── b.py  two
"""
    expected = ["train.py", "jaxformer/", "jaxformer/nn/", "jaxformer/nn/a.py", "jaxformer/b.py"]
    assert tree_paths(f"```{plain}```\n") == expected
    assert tree_paths(f"```\nmake demo\n```\nThe files:\n```text{boxes}```\n") == expected
    assert tree_paths("no tree\n```\nmake demo\n```\n") is None


def test_constraints_are_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    names = [_name(line) for line in lines]
    assert names == sorted(set(names))
    for bad in ("jax>=0.10", "torch==2.13.0+cpu", "a @ http://x", "-e .", "# note", ""):
        assert not PIN.fullmatch(bad)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["dev"], *extras["hf"], *extras["oracle"]]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert {_name(line) for line in asked} - {_name(line) for line in lines} == set()


def _name(requirement: str) -> str:
    """The normalised name at the start of a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_ci_only_calls_make() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines() == [
        "#!/usr/bin/env bash",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "exec make test EXTRAS=dev,hf,oracle",
    ]


def test_hooks_are_local() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {repo["repo"] for repo in hooks["repos"]} == {"local"}
