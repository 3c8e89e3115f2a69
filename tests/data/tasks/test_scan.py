"""SCAN: its files, its splits, its rows."""

import itertools

import jax
import numpy as np
import pytest

from configs.lengths import scan as recipe
from jaxformer.config import RunConfig
from jaxformer.data import open_data, resolve
from jaxformer.data.tasks.rows import TaskRows
from jaxformer.data.tasks.sampler import sample_rows, sample_tests
from jaxformer.data.tasks.scan import WORDS, Scan, read_parts, scan_sampler
from jaxformer.errors import UserError

TRAIN = (
    "IN: walk left OUT: I_TURN_LEFT I_WALK\nIN: jump OUT: I_JUMP\nIN: jump OUT: I_JUMP\n"
    "IN: run twice and jump OUT: I_RUN I_RUN I_JUMP\n"  # the one that is held out
)
TESTS = "IN: run twice OUT: I_RUN I_RUN\nIN: look thrice OUT: I_LOOK I_LOOK I_LOOK\n"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "scan"
    path.mkdir()
    (path / "tasks_train_length.txt").write_text(TRAIN)
    (path / "tasks_test_length.txt").write_text(TESTS)
    return path


def texts(part) -> list[tuple[str, str]]:
    sides = zip(part.prompt, part.prompt_length, part.target, part.target_length, strict=True)
    words = np.array(WORDS)
    return [(" ".join(words[p[:n]]), " ".join(words[t[:m]])) for p, n, t, m in sides]


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        ("simple", (16728, 4182)),
        ("length", (16990, 3920)),
        ("addprim_jump", (14670, 7706)),
        ("length:25", (17774, 3136)),  # Kazemnejad et al. 2023
    ],
)
def test_the_definition_gives_every_line_of_the_files(shared_data, split, sizes):
    task, parts = Scan(), read_parts(str(shared_data("scan")), split)
    found = [texts(part) for part in parts]
    for command, actions in itertools.chain(*found):
        assert task.solve(command.split()) == actions.split()
    train, validation, tests = ({command for command, _ in part} for part in found)
    assert not train & validation
    assert not (train | validation) & (tests - validation)
    assert len(found[0]) + len(found[1]) == sizes[0]
    assert len(tests - validation) == len(set(tests)) - len(tests & validation)
    assert sum(command not in validation for command, _ in found[2]) == sizes[1]
    assert len(validation) / sizes[0] == pytest.approx(0.1, abs=0.011)
    if split == "addprim_jump":
        assert found[0].count(("jump", "I_JUMP")) > 1000  # repeated commands are not held out


def test_rows_of_the_files(folder):
    sampler = scan_sampler(str(folder), "length", 8, True)
    count = sampler.num_examples
    assert (sampler.min_length, sampler.max_length) == (1, 2)
    rows = jax.device_get(jax.jit(sample_rows, static_argnums=(0, 1))(sampler, 2 * count, 3, 0))
    lines = {tuple(row) for row in rows["tokens"].tolist()}
    words = ["<pad>", "<s>", "</s>", "<sep>", *WORDS]
    left = "<s> walk left <sep> I_TURN_LEFT I_WALK <pad> <pad>"
    assert [words[i] for i in max(lines, key=np.count_nonzero)] == left.split()
    first, second = np.split(rows["tokens"], 2)
    assert sorted(first.tolist()) == sorted(second.tolist())
    tests = jax.jit(sample_tests, static_argnums=(0, 1))(sampler, (3, 3, 9), 0, 3)
    assert tests["weights"].sum(1).tolist() == [4, 0, 0]  # there is one of three actions
    assert tests["tokens"][0].tolist()[:4] == [
        words.index(w) for w in ["<s>", "look", "thrice", "<sep>"]
    ]
    assert not sampler.is_exhaustive(2)


def test_files_say_what_a_run_is(folder, tmp_path):
    cfg = recipe.get_config()
    cfg.data.path, cfg.data.task.split, cfg.data.task.max_length = str(folder), "length", 2
    found = RunConfig.from_config_dict(cfg)
    data = open_data(found, None)
    assert isinstance(data.train, TaskRows)
    moved = folder.rename(tmp_path / "elsewhere")
    cfg.data.path = str(moved)
    again = open_data(RunConfig.from_config_dict(cfg), None)
    assert again.train.fingerprint == data.train.fingerprint
    assert resolve(found, data).model.vocab_size == 4 + len(WORDS)
    (moved / "tasks_test_length.txt").write_text(TESTS * 2)
    read_parts.cache_clear()
    changed = open_data(RunConfig.from_config_dict(cfg), None)
    assert changed.train.fingerprint != data.train.fingerprint


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("path", "", "data.path"),
        ("path", "/nowhere", "data.task.split"),
        ("task.split", "", "data.task.split"),
        ("task.split", "simple:3", "data.task.split"),
        ("task.split", "length:48", "data.task.split"),
        ("task.max_length", 25, "data.task.max_length"),
        ("task.num_examples", 9, "data.task.num_examples"),
    ],
)
def test_what_does_not_fit_is_refused(folder, field, value, where):
    cfg = recipe.get_config()
    cfg.data.path, cfg.data.task.split, cfg.data.task.max_length = str(folder), "length", 2
    cfg.update_from_flattened_dict({f"data.{field}": value})
    with pytest.raises(UserError) as error:
        open_data(RunConfig.from_config_dict(cfg), None)
    assert error.value.where == where


def test_a_part_without_examples_is_refused(folder):
    (folder / "tasks_train_length.txt").write_text("IN: jump OUT: I_JUMP\n")
    with pytest.raises(UserError, match="leaves no validation example of 1 commands"):
        scan_sampler(str(folder), "length", 8, True)


def test_a_line_that_is_no_example_is_named(folder):
    (folder / "tasks_train_length.txt").write_text(TRAIN + "IN: swim OUT: I_SWIM\n")
    with pytest.raises(UserError, match=r"length\.txt, line 5: is no example of SCAN: IN: swim"):
        read_parts(str(folder), "length")
    (folder / "tasks_train_length.txt").write_text(f"{TRAIN}IN: {'jump ' * 10}OUT: I_JUMP\n")
    with pytest.raises(UserError, match=r"line 5: is no example of SCAN: IN: jump jump"):
        read_parts(str(folder), "length")
