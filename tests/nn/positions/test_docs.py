"""docs/positions.md says what is true: kinds, declarations, pictures, the example."""

import re

import pytest

from jaxformer.nn.positions import ENCODINGS, check
from jaxformer.nn.positions.scaling import SCALINGS
from scripts import position_pictures
from tests.builders import model_config
from tests.conftest import ROOT

TEXT = (ROOT / "docs" / "positions.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def test_every_kind_has_its_paragraph():
    assert re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE) == list(ENCODINGS)
    assert re.findall(r"^- `(\w+)`", TEXT, re.MULTILINE) == [k for k in SCALINGS if k != "none"]


def test_the_table_says_what_is_declared():
    rows = re.findall(
        r"^\| `(\w+)` \| ([\w, ]*?) ?\| (\w+)[^|]*\| ([^|]+) \| (\w+) \|$", TEXT, re.M
    )
    assert [kind for kind, *_ in rows] == list(ENCODINGS)
    for kind, acts, invariant, ids, trained in rows:
        cfg = model_config(**{"position.kind": kind})
        encoding, yes = ENCODINGS[kind](cfg, True), {True: "yes", False: "no"}
        assert (invariant, trained) == (yes[encoding.shift_invariant], yes[encoding.trained])
        assert encoding.cacheable and encoding.at_input == (acts == "embed")
        end = encoding.bound(cfg)
        table = "`max_length`" if end == cfg.max_length else f"{end:,}"
        assert ids == (f"below {table}" if end else "all")
        hooks = ("embed", "rotate", "bias", "allow", "score", "mix")
        assert {n for n in hooks if n in dir_of(encoding)} == set(filter(None, acts.split(", ")))


def dir_of(encoding):
    """What its class and those above it define, PositionEncoding excepted."""
    classes = type(encoding).__mro__
    return {name for c in classes[: classes.index(ENCODINGS["none"])] for name in vars(c)}


def test_pictures_are_shown_and_there():
    shown = set(re.findall(r"\]\(positions/(\w+)\.png\)", TEXT))
    there = {path.stem for path in (ROOT / "docs" / "positions").iterdir()}
    assert shown == there == set(position_pictures.PICTURES)


@pytest.mark.slow
def test_the_script_draws_them(tmp_path):
    position_pictures.main(tmp_path)
    sizes = {path.stem: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == position_pictures.PICTURES.keys()
    assert all(3_000 < size < 60_000 for size in sizes.values()), sizes


def test_the_example_passes_as_printed(tmp_path, monkeypatch, capsys):
    (tmp_path / "bumps.py").write_text(BLOCKS["python"])
    monkeypatch.syspath_prepend(tmp_path)
    printed = TEXT.split("$ python -m jaxformer.nn.positions.check bumps:Bumps\n")[1]
    assert check.main(["bumps:Bumps"]) == 0
    assert capsys.readouterr().out == printed.split("```")[0]
