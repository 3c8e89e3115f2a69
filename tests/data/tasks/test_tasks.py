"""Every task: its sampler against its oracle, its rows word by word, and its draws."""

import dataclasses
import functools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from jaxformer.config import RunConfig, TaskConfig
from jaxformer.data.tasks import TASKS, make_sampler, make_task
from jaxformer.data.tasks.__main__ import table
from jaxformer.data.tasks.base import Problem, Task
from jaxformer.data.tasks.sampler import make_row
from jaxformer.errors import UserError
from tests.conftest import ROOT

DRAWN = [name for name in TASKS if name != "scan"]
ROOM, MORE = 7, 3
DRAWS = 420

# Inputs and what is supervised, with the first example of docs/tasks.md for each task.
ROWS = {
    "copy_unique": ("<s> c a b <sep> c a b", "c a b </s>"),
    "copy_repeated": ("<s> a b b <sep> a b b", "a b b </s>"),
    "copy_same": ("<s> c c c <sep> c c c", "c c c </s>"),
    "copy_double": ("<s> c a <sep> c a <next> c a", "c a <next> c a </s>"),
    "reverse": ("<s> c a b <sep> b a c", "b a c </s>"),
    "reverse_double": ("<s> c a <sep> a c <next> a c", "a c <next> a c </s>"),
    "reverse_copy": ("<s> c a <sep> a c <next> c a", "a c <next> c a </s>"),
    "addition": ("<s> 4 7 + 5 <sep> 5 2", "5 2 </s>"),
    "addition_reversed": ("<s> 7 4 + 5 <sep> 2 5", "2 5 </s>"),
    "addition_padded": ("<s> 4 7 + 0 5 <sep> 0 5 2", "0 5 2 </s>"),
    "addition_padded_reversed": ("<s> 7 4 + 5 0 <sep> 2 5 0", "2 5 0 </s>"),
    "addition_hints": ("<s> f 7 g 4 + f 5 g 0 <sep> f 2 g 5 h 0", "f 2 g 5 h 0 </s>"),
    "addition_scratchpad": (
        "<s> 4 7 + 5 <sep> 7 5 2 1 , 4 0 5 0 , = 5 2",
        "7 5 2 1 , 4 0 5 0 , = 5 2 </s>",
    ),
    "sum_mod": ("<s> 3 9 4 <sep> 6", "6 </s>"),
    "parity": ("<s> 0 1 1 <sep> 0", "0 </s>"),
    "parity_scratchpad": ("<s> 0 1 1 <sep> 0 1 0", "0 1 0 </s>"),
    "binary_majority": ("<s> 0 1 1 <sep> 1", "1 </s>"),
    "majority": ("<s> c a c <sep> c", "c </s>"),
    "mode": ("<s> c a c <sep> c", "c </s>"),
    "sort": ("<s> 40 7 12 <sep> 7 12 40", "7 12 40 </s>"),
    "bucket_sort": ("<s> 1 0 4 1 <sep> 0 1 1 4", "0 1 1 4 </s>"),
    "count": ("<s> 7 10 <sep> 7 8 9 10", "7 8 9 10 </s>"),
    "dyck": ("<s> ( [ ] [ <sep> ] )", "] ) </s>"),
    "even_pairs": ("<s> 0 0 1 1 1 0 <sep> 0", "0 </s>"),
    "cycle_navigation": ("<s> right stay left left <sep> 4", "4 </s>"),
    "modular_arithmetic": ("<s> 2 + 4 * 3 <sep> 4", "4 </s>"),
    "missing_duplicate": ("<s> 0 1 1 0 0 _ 1 0 <sep> 1", "1 </s>"),
    "selective_copy": ("<s> _ c _ a b _ <sep> c a b", "c a b </s>"),
    "associative_recall": ("<s> c 3 a 1 b 7 a 1", "1 </s>"),
    "flip_flop": ("<s> w 1 i 0 r 1 i 0 r 1", "1 </s>"),
    "scan": (
        "<s> jump left twice <sep> I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP",
        "I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP </s>",
    ),
}


def problem_of(task: Task) -> Problem:
    """The example in what is said of a task, room to spare."""
    arrays = []
    for part in task.about.example.split(" <sep> "):
        ids = [task.words.index(word) for word in part.split()]
        arrays += [jnp.array([*ids, 0, 0]), jnp.int32(len(ids))]
    return Problem(*arrays)


@functools.partial(jax.jit, static_argnums=(0, 3))
def draw(task: Task, keys: jax.Array, lengths: jax.Array, room: int) -> Problem:
    return jax.vmap(lambda key, length: task.sample(key, length, room))(keys, lengths)


@functools.cache
def drawn(task: Task, count: int, room: int, length: int = 0) -> tuple[np.ndarray, Problem]:
    """Problems of all lengths in turn, or of one."""
    least = task.about.smallest
    lengths = np.full(count, length) if length else least + np.arange(count) % (room - least + 1)
    keys = jax.random.split(jax.random.key(0), count)
    return lengths, jax.device_get(draw(task, keys, lengths, room))


def texts(task: Task, problems: Problem) -> list[tuple[list[str], list[str]]]:
    words = np.array(task.words)
    parts = zip(*problems, strict=True)
    return [(words[p[:n]].tolist(), words[t[:m]].tolist()) for p, n, t, m in parts]


@pytest.mark.parametrize("name", DRAWN)
def test_the_sampler_agrees_with_the_definition(name):
    task = TASKS[name]
    lengths, problems = drawn(task, DRAWS, ROOM)
    assert problems.prompt.shape == (DRAWS, task.most_prompt(ROOM))
    assert problems.target.shape == (DRAWS, task.most_target(ROOM))
    found = texts(task, problems)
    for (prompt, target), length in zip(found, lengths.tolist(), strict=True):
        assert task.solve(prompt) == target
        assert len(prompt) <= task.most_prompt(length)
        assert len(target) <= task.most_target(length)
    for ids, count in (problems[:2], problems[2:]):
        assert not ids[np.arange(ids.shape[1]) >= count[:, None]].any()
    longest = [prompt for (prompt, _), n in zip(found, lengths, strict=True) if n == ROOM]
    different = len({tuple(prompt) for prompt in longest})
    assert different >= min(0.8 * len(longest), 0.2 * task.num_prompts(ROOM))
    assert max(map(len, longest)) == task.most_prompt(ROOM)


@pytest.mark.parametrize("name", DRAWN)
def test_a_problem_is_the_same_for_every_room(name):
    task = TASKS[name]
    lengths, problems = drawn(task, DRAWS, ROOM)
    keys = jax.random.split(jax.random.key(0), DRAWS)
    wide = jax.device_get(draw(task, keys, lengths, ROOM + MORE))
    for narrow, other in zip(problems, wide, strict=True):
        width = narrow.shape[1:] and narrow.shape[1]
        np.testing.assert_array_equal(narrow, other[:, :width] if width else other)


@pytest.mark.parametrize("name", TASKS)
def test_rows_word_by_word(name):
    task, (inputs, supervised) = TASKS[name], ROWS[name]
    words = ["<pad>", "<s>", "</s>", "<sep>", *task.words]
    row = jax.device_get(make_row(task, problem_of(task), 40, True, False))
    count = len(inputs.split())
    ids = [words.index(word) for word in inputs.split()]
    targets = [words.index(word) for word in supervised.split()]
    before = count - len(targets)
    weights = [0] * before + [1] * len(targets) + [0] * (40 - count)
    assert row["tokens"].tolist() == ids + [0] * (40 - count)
    assert row["targets"].tolist() == [0] * before + targets + [0] * (40 - count)
    assert row["weights"].tolist() == weights
    assert row["segment_ids"].tolist() == [1] * count + [0] * (40 - count)
    assert row["positions"].tolist() == [*range(count)] + [0] * (40 - count)
    assert row["weights"].dtype == np.float32


@pytest.mark.parametrize("name", TASKS)
def test_the_example_is_right(name):
    prompt, target = (part.split() for part in TASKS[name].about.example.split(" <sep> "))
    assert TASKS[name].solve(prompt) == target


def test_the_list_in_the_documentation():
    assert table() in (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def shares(values, of: int) -> np.ndarray:
    return np.bincount(np.asarray(values), minlength=of) / len(values)


def test_binary_majority_has_every_number_of_zeros_but_half():
    for length, count in ((6, 6), (7, 8)):
        _, problems = drawn(TASKS["binary_majority"], 4000, ROOM, length)
        zeros = length - problems.prompt.sum(1)
        found = np.bincount(zeros, minlength=length + 1) / 4000
        expected = np.full(length + 1, 1 / count)
        expected[length // 2 if length % 2 == 0 else []] = 0
        np.testing.assert_allclose(found, expected, atol=4 * math.sqrt(0.17 * 0.83 / 4000))
        one_zero = problems.prompt[zeros == 1]
        where = shares(one_zero[:, :length].argmin(1), length)
        np.testing.assert_allclose(where, 1 / length, atol=0.08)


@pytest.mark.parametrize("name", ["parity", "even_pairs", "missing_duplicate"])
def test_answers_are_balanced(name):
    _, problems = drawn(TASKS[name], 4000, ROOM, 5)
    assert shares(problems.target[:, 0], 2)[1] == pytest.approx(0.5, abs=0.04)


def test_majority_has_a_single_winner_and_no_favourite():
    _, problems = drawn(TASKS["majority"], 4000, ROOM, 2)
    assert (problems.prompt[:, 0] == problems.prompt[:, 1]).all()
    np.testing.assert_allclose(shares(problems.target[:, 0], 26), 1 / 26, atol=0.015)


def test_operands_of_addition():
    found = texts(TASKS["addition"], drawn(TASKS["addition"], 3000, ROOM, 3)[1])
    operands = [" ".join(prompt).split(" + ") for prompt, _ in found]
    sizes = Counter(tuple(len(number.split()) for number in pair) for pair in operands)
    assert {max(pair) for pair in sizes} == {3}
    for pair, share in {(3, 3): 1 / 3, (1, 3): 1 / 6, (3, 2): 1 / 6}.items():
        assert sizes[pair] / 3000 == pytest.approx(share, abs=0.03)
    assert not [n for pair in operands for n in pair if n.startswith("0 ")]
    firsts = [int(pair[0][0]) for pair in operands if len(pair[0].split()) == 3]
    np.testing.assert_allclose(shares(firsts, 10)[1:], 1 / 9, atol=0.03)
    padded = drawn(TASKS["addition_padded"], 3000, ROOM, 3)[1]
    np.testing.assert_allclose(shares(padded.prompt[:, 0], 10), 0.1, atol=0.025)


def test_distinct_symbols_are_uniform():
    _, problems = drawn(TASKS["copy_unique"], 4000, ROOM, 4)
    ids = problems.prompt[:, :4]
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
    for place in (0, 3):
        np.testing.assert_allclose(shares(ids[:, place], 48), 1 / 48, atol=0.012)


def test_shares_of_flip_flop_and_dyck():
    _, problems = drawn(TASKS["flip_flop"], 3000, ROOM, ROOM)
    does = problems.prompt[:, 2:-1:2]
    np.testing.assert_allclose(shares(does.reshape(-1), 3), [0.1, 0.1, 0.8], atol=0.015)
    _, problems = drawn(TASKS["dyck"], 3000, ROOM, 3)
    opens = problems.prompt[:, 1] % 2 == 0
    assert opens.mean() == pytest.approx(0.5, abs=0.03)
    assert (problems.target_length % 2 == 1).all()


def config_of(name: str, **options: object) -> RunConfig:
    cfg = base.get_config()
    cfg.data.source, cfg.data.task.name, cfg.train.num_steps = "task", name, 300
    cfg.data.length = cfg.model.max_length = 100
    with cfg.unlocked():
        cfg.update_from_flattened_dict({k.replace("__", "."): v for k, v in options.items()})
    return RunConfig.from_config_dict(cfg)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"data__task__name": "coppy"}, "data.task.name"),
        ({"data__task__modulus": 3}, "data.task.modulus"),
        ({"data__task__split": "length"}, "data.task.split"),
        ({"data__task__max_length": 49}, "data.task.max_length"),
        ({"data__task__max_length": 0}, "data.task.max_length"),
        ({"data__task__min_length": 0}, "data.task.min_length"),
        ({"data__length": 33}, "data.length"),
        ({"data__path": "/tmp"}, "data.path"),
        ({"data__add_eos": False}, "data.add_eos"),
        ({"data__pack": True}, "data.pack"),
        ({"train__num_steps": 0}, "train.num_steps"),
        ({"model__position__source__kind": "coupled"}, "model.position.source.kind"),
        ({"data__task__name": "flip_flop"}, "data.task.min_length"),
    ],
)
def test_what_a_task_does_not_have_is_refused(options, where):
    with pytest.raises(UserError) as error:
        make_sampler(config_of("copy_unique", **options))
    assert error.value.where == where


def test_coupled_ids_must_fit_the_range():
    coupled = {"model__position__source__kind": "coupled", "data__task__max_length": 5}
    make_sampler(config_of("addition_padded", model__position__source__range=8, **coupled))
    with pytest.raises(UserError, match=r"source\.range: is 7, but rows of length 5 have 8 ids"):
        make_sampler(config_of("addition_padded", model__position__source__range=7, **coupled))


def test_options_are_taken():
    cfg = config_of("sum_mod", data__task__modulus=7).data.task
    task = make_task(cfg)
    assert task == dataclasses.replace(TASKS["sum_mod"], modulus=7)
    assert isinstance(cfg, TaskConfig)
    assert task.words == tuple("0123456")
    assert make_sampler(config_of("copy_unique")).most_inputs(16) == 34
