"""The scores of a task, one program for all lengths, and teacher forcing against generation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer.config import RunConfig
from jaxformer.data import open_data, resolve
from jaxformer.data.tasks.rows import SampledTask
from jaxformer.errors import UserError
from jaxformer.evaluation import protocol
from jaxformer.evaluation.evaluators import evaluate_batches
from jaxformer.evaluation.lengths import bucket_of, draw_lengths
from jaxformer.evaluation.protocol import Protocol
from jaxformer.evaluation.run import evaluate
from jaxformer.evaluation.suite import load_suite
from jaxformer.evaluation.task_tests import length_sums, shape_of
from jaxformer.generation.generate import generate
from jaxformer.generation.sampling import Greedy
from jaxformer.models import build, forward, init
from jaxformer.models.output import Output
from jaxformer.run import Run

END = 2


def config_of(name: str = "parity", **changes: object) -> RunConfig:
    cfg = base.get_config()
    cfg.data.source, cfg.data.task.name, cfg.data.task.max_length = "task", name, 14
    cfg.data.task.min_length, cfg.data.length, cfg.train.num_steps = 3, 40, 300
    cfg.model.d_model, cfg.model.num_layers, cfg.model.num_heads = 8, 1, 2
    cfg.model.max_length, cfg.model.position.kind = 40, "alibi"
    cfg.eval.batch_size = 8
    cfg.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return RunConfig.from_config_dict(cfg)


def model_of(cfg: RunConfig):
    """A model whose answers differ: initial parameters and much noise."""
    graphdef, _ = nnx.split(build(cfg.model))
    leaves, tree = jax.tree.flatten(init(cfg.model, jax.random.key(1)))
    keys = jax.random.split(jax.random.key(2), len(leaves))
    noise = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return nnx.merge(graphdef, tree.unflatten(a + b for a, b in zip(leaves, noise, strict=True)))


def test_three_readings_of_a_match(monkeypatch):
    """Five words, 2 is the end. Each row is of the target 3 4 and the end, after two inputs."""
    wanted = [0, 3, 4, END]
    said = {  # what is most probable at each input, and what comes second
        "right": ([0, 3, 4, END], [1, 1, 1, 1]),
        "goes on": ([0, 3, 4, 1], [1, 1, 1, 1]),
        "ends early": ([0, 3, END, END], [1, 1, 4, 1]),
        "ends early, and is wrong": ([0, 3, END, END], [1, 1, 1, 1]),
        "wrong before the target": ([1, 3, 4, END], [2, 1, 1, 1]),
        "wrong": ([0, 4, 4, END], [1, 1, 1, 1]),
        "not counted": ([0, 3, 4, END], [1, 1, 1, 1]),
    }
    best, second = (np.array([s[i] for s in said.values()]) for i in (0, 1))
    logits = 4.0 * np.eye(5)[best] + 2.0 * np.eye(5)[second]
    logits = np.concatenate([logits, np.zeros((7, 1, 5))], axis=1)  # and an input of padding
    weights = np.tile([0.0, 1, 1, 1, 0], (7, 1))
    weights[-1] = 0
    batch = {
        "targets": jnp.array(np.tile([*wanted, 0], (7, 1))),
        "weights": jnp.array(weights, jnp.float32),
    }
    out = jnp.array(logits, jnp.float32)
    given = Output(out, jnp.zeros(()), None, {}, {})
    monkeypatch.setattr(protocol, "forward", lambda model, batch: given)
    found = {k: (float(s), float(w)) for k, (s, w) in Protocol().sums(None, batch).items()}
    assert found["exact_match"] == (2, 6)
    assert found["exact_match_no_eos"] == (3, 6)
    assert found["exact_match_oracle_length"] == (4, 6)
    assert found["token_accuracy_tf"] == (18 - 4, 18)
    log_z = np.log(np.exp(logits).sum(-1))
    nll = log_z - np.take_along_axis(logits, np.array([[*wanted, 0]] * 7)[..., None], 2)[..., 0]
    assert found["nll"][0] == pytest.approx((nll * weights).sum(), rel=1e-5)
    assert found["nll"][1] == 18


@pytest.mark.parametrize("kind", ["none", "learned", "rope", "alibi"])
def test_teacher_forcing_and_generation_match_the_same_examples(kind):
    """Targets are what the model says, half of them changed at one place."""
    cfg = config_of(
        "copy_double",
        model__position__kind=kind,
        model__tie_embeddings=False,
        data__task__max_length=5,
    )
    data = open_data(cfg, None)
    assert isinstance(data.task, SampledTask)
    cfg = resolve(cfg, data)
    model, count = model_of(cfg), 24
    [tests] = draw_lengths(data.task, cfg, (5,), num_examples=count, seed=0, strict=True)
    batch = jax.device_get(next(tests.batches(count, 0)))
    starts_B = (batch["weights"] > 0).argmax(1) + 1
    ends_B = (batch["segment_ids"] > 0).sum(1)  # inputs; the last target is one more
    new = int((ends_B + 1 - starts_B).max())
    out = generate(
        model,
        batch["tokens"][:, : starts_B.max()],
        starts_B,
        max_new_tokens=new,
        sampler=Greedy(),
        key=jax.random.key(0),
        eos_id=-1,
        pad_id=0,
    )
    said = np.asarray(out.tokens)
    wanted, random = said.copy(), np.random.default_rng(0)
    changed = np.arange(count) % 2 == 1
    for row in np.flatnonzero(changed):
        wanted[row, random.integers(new)] ^= 1
    targets, tokens = batch["targets"].copy(), batch["tokens"].copy()
    for row, start in enumerate(starts_B):
        targets[row, start - 1 : start - 1 + new] = wanted[row]
        tokens[row, start : start - 1 + new] = wanted[row, :-1]
    batch = batch | {"tokens": tokens, "targets": targets}
    for row in range(count):
        one = {name: array[row : row + 1] for name, array in batch.items()}
        match = Protocol().sums(model, one)["exact_match"]
        assert float(match[0]) == float((said[row] == wanted[row]).all()) == float(not changed[row])
    assert len({tuple(line) for line in said.tolist()}) > 3  # not one answer to everything


def test_coupled_ids_decode_as_they_are_scored():
    cfg = config_of(
        "addition_padded_reversed",
        model__position__kind="learned",
        model__position__source__kind="coupled",
        data__task__max_length=5,
        data__task__min_length=1,
        model__tie_embeddings=False,
    )
    data = open_data(cfg, None)
    assert isinstance(data.task, SampledTask)
    cfg = resolve(cfg, data)
    model = model_of(cfg)
    [tests] = draw_lengths(data.task, cfg, (4,), num_examples=6, seed=0, strict=True)
    batch = dict(jax.device_get(next(tests.batches(6, 0))))
    start, end = 11, 16
    tokens = batch["tokens"].copy()
    for place in range(start - 1, end - 1):  # its own words are read, not those of the target
        logits = forward(model, batch | {"tokens": tokens}).logits
        tokens[:, place + 1] = logits[:, place].argmax(-1)
    said = tokens[:, start:end]
    batch["tokens"] = tokens
    last = forward(model, batch).logits[:, end - 1].argmax(-1)
    batch["targets"] = batch["targets"].copy()
    batch["targets"][:, start - 1 : end] = np.concatenate([said, last[:, None]], axis=1)
    assert batch["weights"].sum(1).tolist() == [6] * 6
    assert float(Protocol().sums(model, batch)["exact_match"][0]) == 6
    with pytest.raises(UserError, match=r"source\.kind: is coupled"):
        generate(
            model,
            tokens[:, :start],
            np.full(6, start),
            max_new_tokens=2,
            sampler=Greedy(),
            key=jax.random.key(0),
            eos_id=2,
            pad_id=0,
        )


def test_one_program_for_all_lengths_and_many_seeds():
    cfg = config_of()
    data = open_data(cfg, None)
    assert isinstance(data.task, SampledTask)
    cfg, sampler = resolve(cfg, data), data.task.sampler
    graphdef, _ = nnx.split(build(cfg.model))
    seeds = jnp.arange(2)
    params = jax.vmap(lambda seed: init(cfg.model, jax.random.key(seed)))(seeds)
    shape, traced = shape_of(sampler, 8, 20), []

    @jax.jit
    def many(params, length):
        traced.append(1)

        def one(params):
            fixed = (Protocol(),), graphdef, sampler, shape, 20
            return length_sums(*fixed, params, 7, length)

        return jax.vmap(one)(params)

    tests = draw_lengths(data.task, cfg, (3, 14, 20), num_examples=20, seed=7, strict=True)
    for examples in tests:
        sums = many(params, examples.length)
        for seed in (0, 1):
            own = jax.tree.map(lambda leaf: leaf[seed], params)  # noqa: B023
            alone = evaluate_batches((Protocol(),), graphdef, own, examples.batches(8, 0))
            for name, total in alone.items():
                assert float(sums[name][1][seed]) == total.weight
                assert float(sums[name][0][seed]) == pytest.approx(total.sum, rel=1e-5)
            assert alone["exact_match"].weight == 20
            assert alone["nll"].weight == 40
    assert len(traced) == 1
    assert float(sums["nll"][0][0]) != float(sums["nll"][0][1])


def test_lengths_are_told_apart():
    cfg = config_of()
    assert [bucket_of(cfg, n) for n in (2, 3, 14, 15)] == ["below", "id", "id", "ood"]
    data = open_data(cfg, None)
    assert isinstance(data.task, SampledTask)
    kept = draw_lengths(data.task, cfg, (0, 3, 99), num_examples=1, seed=0, strict=False)
    assert [tests.length for tests in kept] == [3, 99]  # alibi has no end
    with pytest.raises(UserError, match=r"^lengths: has 0, lengths of parity are from 1$"):
        draw_lengths(data.task, cfg, (0,), num_examples=1, seed=0, strict=True)
    cfg = config_of(model__position__kind="learned")
    kept = draw_lengths(data.task, cfg, (37, 38), num_examples=1, seed=0, strict=False)
    assert [tests.length for tests in kept] == [37]
    with pytest.raises(UserError, match=r"^model\.max_length: is 40, but length 38 needs 41"):
        draw_lengths(data.task, cfg, (38,), num_examples=1, seed=0, strict=True)


def test_an_evaluation_of_a_task(tmp_path):
    cfg = config_of()
    data = open_data(cfg, None)
    cfg = resolve(cfg, data)
    suite = load_suite("", cfg.data)
    assert suite.num_examples == 1000
    suite = dataclasses.replace(suite, num_examples=10, lengths="0,12,14,20")
    run = Run(model_of(cfg), data.tokenizer, cfg, 0, "")
    found = evaluate(run, data, suite, tmp_path)
    rows = [row for row in found.results if row["metric"] == "exact_match"]
    told = {row["length"]: (row["bucket"], row["exhaustive"]) for row in rows if row["length"]}
    assert told == {12: ("id", True), 14: ("id", False), 20: ("ood", False)}
    assert [row["weight"] for row in rows] == [1000, 10, 10, 10]
    table = found.tables["By number of bits"]
    assert "Exhaustive, so that training had their prompts too: [12]" in table
    assert "Left out, without examples: [0]" in table  # alibi has no end
    assert "token accuracy (teacher-forced) %" in table
    assert (tmp_path / "exact_match_by_length.png").exists()
