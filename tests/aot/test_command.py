"""train.py --aot from the outside; the last tests need libtpu and compile for TPUs."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.test_cli import TINY, commands

has_libtpu = importlib.util.find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(not has_libtpu, reason="needs libtpu: install the extra tpu")
LARGE = [  # a head that no chip can hold
    "--config=configs/text.py",
    "--config.data.path=nowhere.txt",
    "--config.model.vocab_size=8000000",
    "--config.model.num_layers=1",
    "--aot=v5e:1x1",
]


@pytest.fixture(scope="module")
def ran():
    cases = {
        "unknown": ["train.py", *TINY, "--aot=v9x:2x2"],
        "both": ["train.py", *TINY, "--aot=v5e:2x2", "--dry_run"],
        "process": ["train.py", *TINY, "--aot=v5e:2x2", "--num_processes=2"],
        "dry run": ["train.py", *TINY, "--dry_run"],
    }
    if has_libtpu:
        mesh = ["--config.mesh.fsdp=2", "--config.model.scan_layers=true"]
        cases["tiny"] = ["train.py", *TINY, *mesh, "--aot=v5e:2x4"]
        cases["large"] = ["train.py", *LARGE]
    return dict(zip(cases, commands(list(cases.values())), strict=True))


def test_an_unknown_topology_is_one_line(ran):
    status, out, error = ran["unknown"]
    assert (status, out) == (2, "")
    assert error.startswith("error: --aot: is 'v9x:2x2', give CHIP:AxB")
    assert error.count("\n") == 1
    assert ran["both"][:2] == (2, "")
    assert ran["both"][2] == "error: --aot: is given besides --dry_run, give one of them\n"
    assert ran["process"][2].startswith("error: --num_processes: is given with --aot, leave it out")


def test_a_dry_run_prints_bytes_by_kind(ran):
    status, out, _ = ran["dry run"]
    assert status == 0
    table = out[out.index("\nmesh data × fsdp = 1 × 1") :]
    named = dict(re.findall(r"\| ([a-z() ]+?) *\| +([\d,]+) *\|", table))
    sizes = {kind: int(size.replace(",", "")) for kind, size in named.items()}
    assert list(sizes)[:4] == ["parameters", "optimizer state", "gradients", "batch"]
    assert sizes.pop("total") == sum(sizes.values())


@needs_libtpu
def test_a_step_is_compiled_for_a_slice_that_is_not_here(ran):
    status, out, error = ran["tiny"]
    assert status == 0, error
    assert "v5e:2x4: 8 chips, data × fsdp = 4 × 2" in out
    assert re.search(r"\| all-reduce +\|", out)
    assert re.search(r"\| total +\| +0\.\d+ +\|", out)
    assert re.search(r"a step takes at least \S+ \S+ \(MFU \d+\.\d%\)", out)


@needs_libtpu
def test_what_does_not_fit_is_status_2_with_the_largest_buffers(ran):
    status, out, error = ran["large"]
    assert (status, out) == (2, "")
    assert "largest buffers of a chip:" in error
    assert "8000000" in error
    assert re.search(r"error: --aot=v5e:1x1: the step needs \S+B of a chip's 1\S+B, lower", error)


def test_the_readme_of_launching_names_the_commands():
    text = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert "--aot=v5e:16x16" in text and "launch_tpu_pod.sh" in text and "launch_slurm.sh" in text
