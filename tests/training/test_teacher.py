"""Distillation: the loss by hand, its gradient, teachers of every objective, refusals, resume."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.config import MeshConfig
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.losses import distillation
from jaxformer.models import build, init
from jaxformer.sharding import path_of
from jaxformer.training.loop import train
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import new_state
from jaxformer.training.step import make_train_step
from jaxformer.training.teacher import load_teacher
from tests.builders import random_params
from tests.training import tiny
from tests.training.test_loop import At, Killed, kill, lines, saved

WORDS = word_tokenizer("abcdefgh")
TEACHER = {"model__num_layers": 2, "model__d_model": 16}


def data():
    found = tiny.data()
    found.tokenizer.fingerprint = WORDS.fingerprint
    found.classes = ()
    return found


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The run of a wider and deeper model."""
    workdir = tmp_path_factory.mktemp("teacher")
    train(tiny.config(**TEACHER, train__num_steps=3), data(), workdir)
    WORDS.save(workdir / "tokenizer.json")
    return workdir


def taught(workdir, **changes):
    return tiny.config(**{"objective__distillation__teacher": str(workdir)} | changes)


def test_two_classes_by_hand():
    """Logits (ln 4, 0) at T = 2 are 2 : 1, so p = (2/3, 1/3); the student's (0, 0) are 1/2 each.

    KL = 2/3 ln 4/3 + 1/3 ln 2/3, and T² makes it four times that. A position of weight 0 adds
    nothing, whatever is there.
    """
    kl = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    student = jnp.array([[0.0, 0.0], [0.0, 0.0], [jnp.nan, 0.0]])
    their = jnp.array([[math.log(4), 0.0], [0.0, 0.0], [1.0, 2.0]])
    total, weight = distillation(student, their, jnp.array([3.0, 1.0, 0.0]), 2.0)
    np.testing.assert_allclose(total, 3 * 4 * kl, rtol=1e-6)
    assert weight == 4
    of_one = distillation(student[:1], their[:1], jnp.ones(1), 1.0)[0]
    np.testing.assert_allclose(of_one, 0.8 * math.log(1.6) + 0.2 * math.log(0.4), rtol=1e-5)


def test_its_gradient_is_t_times_the_distance_of_the_probabilities_and_none_is_the_teachers():
    """d(T² KL) / d logits = T (q_T - p_T): at a high T the size of logits' own distance."""
    student, their = jnp.array([[1.0, -1.0, 0.5]]), jnp.array([[0.0, 2.0, 1.0]])
    of_both = jax.grad(lambda s, t: distillation(s, t, jnp.ones(1), 3.0)[0], argnums=(0, 1))
    found, of_teacher = of_both(student, their)
    expected = 3 * (jax.nn.softmax(student / 3) - jax.nn.softmax(their / 3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(of_teacher, 0)


def step_of(cfg, teacher_cfg, params, batch):
    """The state and metrics after one step of SGD-like numbers: nothing but the gradient norm."""
    graphdef, _ = nnx.split(build(cfg.model))
    tx, schedule = make_optimizer(cfg)
    state = new_state(init(cfg.model, jax.random.key(0)), tx)
    if teacher_cfg is None:
        return jax.jit(make_train_step(graphdef, tx, schedule, cfg))(state, batch)
    theirs, _ = nnx.split(build(teacher_cfg.model))
    step = make_train_step(graphdef, tx, schedule, cfg, theirs)
    return jax.jit(step)(state, batch, params)


@pytest.mark.parametrize("changes", [{}, {"model__logit_chunk": 3}, {"train__num_microbatches": 4}])
def test_what_is_minimised(changes):
    """(1 - α) CE + α T² KL of both models' logits on the batch, however it is cut."""
    cfg = taught("x", **{"objective__distillation__alpha": 0.25} | changes)
    theirs = tiny.config(**TEACHER)
    params, batch = random_params(theirs.model), tiny.batch()
    _, metrics = step_of(cfg, theirs, params, batch)
    logits = [
        nnx.merge(nnx.split(build(model))[0], values)(
            *(batch[name] for name in ("tokens", "segment_ids", "positions"))
        ).logits
        for model, values in (
            (cfg.model, init(cfg.model, jax.random.key(0))),
            (theirs.model, params),
        )
    ]
    ours, their = (np.float64(x) / 2 for x in logits)
    log_q = ours - np.log(np.exp(ours).sum(-1, keepdims=True))
    log_p = their - np.log(np.exp(their).sum(-1, keepdims=True))
    kl = 4 * ((np.exp(log_p) * (log_p - log_q)).sum(-1) * batch["weights"]).sum()
    weight = batch["weights"].sum()
    np.testing.assert_allclose(metrics["distillation"], kl, rtol=1e-4)
    expected = 0.75 * metrics["loss"] / weight + 0.25 * kl / weight
    np.testing.assert_allclose(metrics["total"], expected, rtol=1e-5)


def test_a_step_without_its_teacher_is_no_step():
    graphdef, _ = nnx.split(build(tiny.config().model))
    with pytest.raises(ValueError, match="goes with"):
        make_train_step(graphdef, *make_optimizer(taught("x")), taught("x"))


def test_on_a_mesh_the_teacher_is_cut_like_a_model_and_teaches_the_same(teacher):
    sizes = MeshConfig(data=2, fsdp=2, expert=1, context=1, tensor=2)
    alone = load_teacher(taught(teacher), data())
    cfg = dataclasses.replace(taught(teacher), mesh=sizes)
    spread = load_teacher(cfg, data())
    assert alone.fingerprint == spread.fingerprint
    for keys, leaf in jax.tree_util.tree_leaves_with_path(spread.params):
        if path_of(keys).endswith("kernel"):
            assert leaf.addressable_shards[0].data.nbytes * 4 == leaf.nbytes


def test_killed_and_resumed_it_is_equal_in_every_bit_and_refuses_another_teacher(teacher, tmp_path):
    cfg, other = taught(teacher), tmp_path / "other"
    train(cfg, data(), tmp_path / "whole")
    with pytest.raises(Killed):
        train(cfg, data(), tmp_path / "killed", progress=At(6, kill))
    train(tiny.config(**TEACHER, train__num_steps=2), data(), other)
    WORDS.save(other / "tokenizer.json")
    with pytest.raises(UserError, match=r"holds a run with another teacher than .*other"):
        train(taught(other), data(), tmp_path / "killed")
    with pytest.raises(UserError, match=r"holds a run with another teacher than none"):
        train(tiny.config(), data(), tmp_path / "killed")
    teacher.rename(moved := tmp_path / "moved")  # the same one elsewhere
    try:
        train(taught(moved), data(), tmp_path / "killed")
    finally:
        moved.rename(teacher)
    whole, resumed = (saved(tmp_path / name, tiny.config()) for name in ("whole", "killed"))
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    assert lines(tmp_path / "whole") == lines(tmp_path / "killed")
    assert lines(tmp_path / "whole")[0]["distillation"] > 0


def test_teachers_that_do_not_fit_are_refused_in_a_line(teacher, tmp_path):
    def refusal(cfg, of=None):
        with pytest.raises(UserError) as caught:
            load_teacher(cfg, of or data())
        assert caught.value.where == "objective.distillation.teacher"
        return str(caught.value)

    with pytest.raises(UserError, match=r"has no config.json and no checkpoint"):
        load_teacher(taught(tmp_path), data())
    elsewhere = data()
    elsewhere.tokenizer.fingerprint = "another"
    assert "has another vocabulary than this run" in refusal(taught(teacher), elsewhere)
    assert "logits of 11 tokens and 0 classes, this run of 12 and 0" in refusal(
        taught(teacher, model__vocab_size=12)
    )
    assert "was trained on causal_lm, this run is on prefix_lm" in refusal(
        taught(teacher, objective__kind="prefix_lm", data__source="text", data__path="a")
    )
    assert "data.length: 16 is more than model.max_length = 8" in refusal(
        taught(teacher, model__max_length=16, data__length=16)
    )
    for changes, what in (
        ({"alpha": 0.0}, "alpha: is 0.0, give a share above 0"),
        ({"temperature": 0.0}, "temperature: is 0.0"),
    ):
        with pytest.raises(UserError, match=what):
            taught("x", **{f"objective__distillation__{k}": v for k, v in changes.items()})
