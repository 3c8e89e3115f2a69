"""The command that tries a user's own encoding."""

import subprocess
import sys

import pytest

from jaxformer.nn.positions import check
from tests.conftest import ROOT

OVER_LENGTH = '''
"""ALiBi as it is often written: distances between places of the query's array."""

import jax.numpy as jnp

from jaxformer.nn.positions import PositionEncoding


class MyAlibi(PositionEncoding):
    def __init__(self, cfg, causal):
        self.num_heads = cfg.num_heads

    def bias(self, q_positions_BL, k_positions_BS):
        at_L = jnp.arange(q_positions_BL.shape[1])
        away_LL = jnp.abs(at_L[:, None] - at_L[None]).astype(jnp.float32)
        slopes_H = 2.0 ** -jnp.arange(1.0, self.num_heads + 1)
        return -slopes_H[None, :, None, None] * away_LL[None, None]
'''


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Writes a user's module where Python finds it."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return write


def rows(text):
    """Property -> (result, counterexample) of a printed table."""
    lines = text.split("\n\n")[1].splitlines()[1:]
    return {line[:46].strip(): (line[46:52], line[54:]) for line in lines}


def test_a_bias_over_the_query_length_is_found(on_path, capsys):
    on_path("over_length", OVER_LENGTH)
    assert check.main(["over_length:MyAlibi"]) == 1
    table = rows(capsys.readouterr().out)
    failed = {what: text for what, (result, text) in table.items() if result == "FAILED"}
    assert "bias gives float32[1, 6, 3, 3]" in failed["hooks keep shapes and types"]
    assert "decoding: row 0, token 9" in failed["cached decoding equals the full pass"]
    assert "row 2, token 1" in failed["padding changes nothing"]
    assert {result for what, (result, _) in table.items() if what not in failed} == {"passed"}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("rpoe", "error: model.position.kind: is 'rpoe', did you mean rope?"),
        ("nowhere:Mine", "cannot be imported (ModuleNotFoundError"),
        ("broken:Mine", "cannot be imported (SyntaxError"),
        ("other:Mine", "is no PositionEncoding"),
        ("raising:Mine", "whose constructor fails (ZeroDivisionError"),
    ],
)
def test_a_bad_name_is_refused(argument, words, on_path, capsys):
    on_path("broken", "class Mine(:")
    on_path("other", "class Mine: ...")
    on_path("raising", "from jaxformer.nn.positions import PositionEncoding\n"
            "class Mine(PositionEncoding):\n"
            "    def __init__(self, cfg, causal):\n        1 / 0\n")  # fmt: skip
    assert check.main([argument]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_config_gives_the_options(on_path, capsys, monkeypatch):
    """The encoding of another config's section, and a file that is none."""
    on_path("scaled", "from configs.base import get_config as base\ndef get_config():\n"
            "    c = base()\n    c.model.position.rope.scaling.factor = 0.5\n"
            "    c.model.position.rope.scaling.kind = 'yarn'\n    return c\n")  # fmt: skip
    path = sys.path[0] + "/scaled.py"
    assert check.main(["rope", f"--config={path}"]) == 2
    assert "model.position.rope.scaling.factor: is 0.5" in capsys.readouterr().err
    assert check.main(["rope", "--config=nothing.py"]) == 2
    assert "nothing.py: cannot be loaded" in capsys.readouterr().err


def test_it_is_a_command():
    command = [sys.executable, "-m", "jaxformer.nn.positions.check"]
    out = subprocess.run([*command, "wrong"], cwd=ROOT, capture_output=True, text=True)
    assert (out.returncode, out.stdout) == (2, "")
    assert out.stderr.startswith("error: model.position.kind: is 'wrong'")
