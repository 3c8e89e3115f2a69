"""Rows of tasks: the same on host and device, apart from tests, each of a number and a seed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.data.describe import describe
from jaxformer.data.loader import Loader
from jaxformer.data.tasks import TASKS
from jaxformer.data.tasks.rows import NUM_VALIDATION, TaskRows
from jaxformer.data.tasks.sampler import (
    MIN_PROMPTS,
    Problem,
    Sampler,
    make_row,
    sample_batch,
    sample_rows,
    sample_tests,
    shuffled,
)


def sampler_of(name: str, least: int, most: int, num_examples: int = 0) -> Sampler:
    one = Sampler(TASKS[name], least, most, num_examples, 0, True, False)
    return dataclasses.replace(one, width=one.most_inputs(most))


_batch = jax.jit(sample_batch, static_argnums=(0, 1))
_rows = jax.jit(sample_rows, static_argnums=(0, 1))
_tests = jax.jit(sample_tests, static_argnums=(0, 1))


def equal(one, other) -> None:
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("num_examples", [0, 10])
def test_loader_and_device_have_the_same_batches(num_examples):
    sampler, size, seeds = sampler_of("copy_unique", 1, 4, num_examples), 6, jnp.arange(3, 5)

    def body(seed):
        step = lambda carry, s: (carry, sample_batch(sampler, size, seed, s))  # noqa: E731
        return jax.lax.scan(step, 0, jnp.arange(2, 6))[1]

    on_device = jax.device_get(jax.jit(jax.vmap(body))(seeds))
    for index, seed in enumerate((3, 4)):
        whole = Loader(TaskRows(sampler, seed), size, seed=99, start_step=2)
        halves = [Loader(TaskRows(sampler, seed), size, 99, 0, rank, 2) for rank in range(2)]
        for step in range(4):
            batch = next(whole)
            equal(batch, {name: array[index, step] for name, array in on_device.items()})
            parts = [half.batch(step + 2) for half in halves]
            equal(batch, {n: np.concatenate([part[n] for part in parts]) for n in batch})
        whole.close()
    assert (on_device["rows"][0, 1] == 3 * size + np.arange(size)).all()
    assert (on_device["tokens"][0] != on_device["tokens"][1]).any()


def prompts(batch, skip: int = 1) -> list[tuple[int, ...]]:
    tokens = np.asarray(batch["tokens"])
    ends = (tokens == 3).argmax(1)
    return [tuple(row[skip:end]) for row, end in zip(tokens.tolist(), ends.tolist(), strict=True)]


def test_training_never_has_the_prompts_of_tests_where_there_are_enough():
    """12 bits are 4096 prompts, all of training; 13 bits are enough; 14 are not trained on."""
    sampler = sampler_of("copy_repeated", 12, 13)
    assert [sampler.is_exhaustive(n) for n in (11, 12, 13, 14)] == [False, True, False, False]
    assert MIN_PROMPTS == 2**13
    assert not sampler_of("parity", 1, 1100).is_exhaustive(1100)  # 2^1100 is no float
    train = [p for seed in (0, 1) for p in prompts(_rows(sampler, 20000, seed, 0))]
    tests = {n: prompts(_tests(sampler, (4096, 14, 30), 0, n)) for n in (12, 13, 14)}
    seen = {n: {p for p in train if len(p) == n} for n in (12, 13)}
    assert abs(sum(len(p) == 12 for p in train) / 40000 - 0.5) < 0.01
    assert len(seen[12]) > 3900  # all of 4096 but e^-5 of them
    assert len(set(tests[12]) & seen[12]) > 2000
    assert not set(tests[13]) & seen[13]
    assert 6000 < len(seen[13]) <= 7 / 8 * 2**13 * 1.1
    assert 900 < len(set(tests[13])) < 1 / 8 * 2**13 * 1.1
    assert len(set(tests[14])) > 3400  # of all 2^14, not of an eighth


def test_validation_is_apart_from_training_too():
    cfg = base.get_config()
    cfg.data.source, cfg.data.task.name, cfg.train.num_steps = "task", "parity", 300
    cfg.data.task.min_length, cfg.data.task.max_length, cfg.data.length = 13, 14, 19
    data = open_data(RunConfig.from_config_dict(cfg), None)
    held_out = prompts({"tokens": [data.validation.row(0, i)["tokens"] for i in range(1000)]})
    assert len(data.validation) == NUM_VALIDATION == len(held_out)
    assert data.validation.num_tokens == 2 * NUM_VALIDATION
    assert isinstance(data.train, TaskRows)
    assert not set(held_out) & set(prompts(data.train.batch(0, 20000)))
    assert 0.4 < np.mean([len(prompt) == 13 for prompt in held_out]) < 0.6
    facts = describe(data, RunConfig.from_config_dict(cfg))
    assert facts["training rows"] == "of 19 tokens, new ones for ever"
    equal(data.train.row(0, 7), {k: v[7] for k, v in data.train.batch(0, 8).items() if k != "rows"})


def test_a_problem_that_is_never_right_is_not_supervised(monkeypatch):
    never = lambda problem: problem.prompt[0] >= 0  # noqa: E731
    monkeypatch.setattr("jaxformer.data.tasks.sampler.is_held_out", never)
    monkeypatch.setattr("jaxformer.data.tasks.sampler.MOST_DRAWS", 3)
    rows = jax.jit(functools.partial(sample_rows, sampler_of("parity", 13, 13), 4))(0, 0)
    assert not rows["weights"].any()


def test_a_fixed_set_has_a_new_order_every_epoch():
    sampler = sampler_of("copy_unique", 2, 4, num_examples=50)
    rows = jax.device_get(_rows(sampler, 150, 5, 0))
    epochs = rows["tokens"].reshape(3, 50, -1).tolist()
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]
    assert len({tuple(row) for row in epochs[0]}) > 45


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_shuffled_is_a_permutation(count):
    key = jax.random.key(count)
    order = jax.jit(jax.vmap(lambda place: shuffled(place, count, key)))(jnp.arange(count))
    assert sorted(order.tolist()) == list(range(count))
    if count == 1000:  # as random as a draw is: correlation with its place, fixed points
        assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.1
        assert (np.asarray(order) == np.arange(count)).sum() < 6


def test_lengths_are_uniform():
    sampler = sampler_of("copy_unique", 3, 7)
    counts = np.bincount([len(p) for p in prompts(_rows(sampler, 8000, 0, 0))], minlength=9)
    np.testing.assert_allclose(counts[3:8] / 8000, 0.2, atol=0.02)
    assert counts[3:8].sum() == 8000


def test_tests_depend_on_their_number_alone():
    sampler = sampler_of("copy_unique", 3, 7)
    first = _tests(sampler, (8, 9, 20), 1, 5, 0)
    later = _tests(sampler, (8, 9, 20), 1, 5, 4)
    equal({n: a[4:] for n, a in first.items()}, {n: a[:4] for n, a in later.items()})
    wide = _tests(sampler, (8, 12, 26), 1, 5, 0)
    equal(first, {n: a[:, :20] if a.ndim == 2 else a for n, a in wide.items()})
    assert prompts(_tests(sampler, (8, 9, 20), 2, 5, 0)) != prompts(first)


def test_rows_without_bos():
    task = TASKS["sum_mod"]
    problem = Problem(jnp.array([3, 9, 4]), jnp.int32(3), jnp.array([6]), jnp.int32(1))
    row = make_row(task, problem, 6, False, False)
    assert row["tokens"].tolist() == [7, 13, 8, 3, 10, 0]
    assert row["targets"].tolist() == [0, 0, 0, 10, 2, 0]
    assert row["weights"].tolist() == [0, 0, 0, 1, 1, 0]


def test_coupled_ids_of_addition():
    """Cho et al. 2024: 653+049, the answer from its lowest digit on; theirs is 2070 with ids 2 …"""
    plain, lowest = TASKS["addition_padded"], TASKS["addition_padded_reversed"]
    for task, text, operand, answer in (
        (plain, "6 5 3 + 0 4 9 <sep> 0 7 0 2", [4, 3, 2], [5, 4, 3, 2]),
        (lowest, "3 5 6 + 9 4 0 <sep> 2 0 7 0", [2, 3, 4], [2, 3, 4, 5]),
    ):
        parts = [[task.words.index(w) for w in part.split()] for part in text.split(" <sep> ")]
        arrays = [jnp.array([*ids, 0, 0]) for ids in parts]
        problem = Problem(arrays[0], jnp.int32(7), arrays[1], jnp.int32(4))
        row = make_row(task, problem, 15, True, True)
        ids = [0, *operand, 1, *operand, 1, *answer]
        assert row["positions"].tolist() == [*ids, 0, 0]
        assert row["segment_ids"].tolist() == [1] * 13 + [0, 0]
        assert task.most_coupled(3) == max(ids)


def test_data_seed_apart_from_the_seed():
    cfg = base.get_config()
    cfg.data.source, cfg.data.task.name, cfg.train.num_steps = "task", "parity", 300

    def first(seed: int, data_seed: int) -> np.ndarray:
        cfg.seed, cfg.data.seed = seed, data_seed
        return open_data(RunConfig.from_config_dict(cfg), None).train.row(0, 0)["tokens"]

    assert (first(1, 7) == first(2, 7)).all()
    assert (first(7, 0) == first(1, 7)).all()
    assert any((first(1, 7) != first(1, seed)).any() for seed in (8, 9))
