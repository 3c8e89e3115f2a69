"""The average of the parameters: by hand, through skipped updates, resumed, read back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.aot.memory import bytes_by_kind
from jaxformer.config import EmaConfig, MeshConfig
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import validation
from jaxformer.mesh import make_mesh
from jaxformer.models import build
from jaxformer.run import load
from jaxformer.sharding import path_of
from jaxformer.training.average import average
from jaxformer.training.loop import train
from tests.training import tiny
from tests.training.test_loop import At, Killed, kill, lines, saved

EMA = {"train__ema__decay": 0.5, "eval__weights": "ema"}
BOTH = EMA | {"optimizer__kind": "muon", "model__num_layers": 2, "model__scan_layers": True}


def test_by_hand():
    """Decay .5: 4, 2, 5 from 0 give 2, 2, 3.5; warming up the first two are .1 and 2 / 11."""
    for warmup, expected in ((False, [2.0, 2.0, 3.5]), (True, None)):
        cfg, ema, found, by_hand = EmaConfig(0.5, warmup), jnp.zeros(()), [], 0.0
        for n, value in enumerate((4.0, 2.0, 5.0), 1):
            ema = average(ema, jnp.float32(value), jnp.int32(n), cfg)
            decay = min(0.5, n / (n + 9)) if warmup else 0.5
            by_hand = decay * by_hand + (1 - decay) * value
            found.append(float(ema))
            np.testing.assert_allclose(found[-1], by_hand, rtol=1e-6)
        np.testing.assert_allclose(found, expected or [3.6, 2.290909, 4.322727], rtol=1e-6)
    assert average({}, jnp.float32(1.0), jnp.int32(1), EmaConfig(0.0, True)) == {}


def test_the_step_averages_what_it_makes_and_a_skipped_update_moves_nothing():
    """What is frozen has itself for its average, in every bit."""
    cfg = tiny.config(**EMA, train__freeze=("embedding/*",))
    run = tiny.program(cfg)
    state, expected = run.state, jax.tree.map(np.float64, run.state.params)
    bad = tiny.batch(9)
    bad["weights"] = np.full_like(bad["weights"], np.inf)
    made = 0
    for batch in (tiny.batch(0), bad, tiny.batch(1), tiny.batch(2)):
        before = state
        state, metrics = run.step(state, batch)
        if metrics["skipped"]:
            jax.tree.map(np.testing.assert_array_equal, state.ema, before.ema)
            continue
        made += 1
        decay = min(0.5, made / (made + 9))
        expected = jax.tree.map(
            lambda e, p, d=decay: d * e + (1 - d) * np.float64(p), expected, state.params
        )
    assert made == 3
    for (keys, e), found in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(state.ema), strict=True
    ):
        np.testing.assert_allclose(found, e, rtol=1e-4, atol=1e-7, err_msg=path_of(keys))
    table = state.params["embedding"]["table"]
    np.testing.assert_array_equal(state.ema["embedding"]["table"], table)
    assert not np.array_equal(state.ema["final_norm"]["scale"], state.params["final_norm"]["scale"])


def test_on_a_mesh_it_lies_where_the_parameters_do():
    cfg = tiny.config(**EMA)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, expert=1, context=1, tensor=2))
    alone, spread = tiny.program(cfg), tiny.program(cfg, mesh)
    assert jax.tree.map(lambda leaf: leaf.sharding, spread.abstract.ema) == jax.tree.map(
        lambda leaf: leaf.sharding, spread.abstract.params
    )
    one, _ = alone.step(alone.state, tiny.batch())
    with jax.set_mesh(mesh):
        cut, _ = spread.step(spread.state, tiny.batch())
    for a, b in zip(jax.tree.leaves(one.ema), jax.tree.leaves(cut.ema), strict=True):
        np.testing.assert_allclose(np.asarray(b)[tuple(map(slice, a.shape))], a, atol=1e-3)


def test_a_dry_run_counts_its_bytes():
    ema, none = (bytes_by_kind(tiny.config(**more), 1)[1] for more in (EMA, {}))
    assert ema == none | {"average of parameters": none["parameters"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with an average and Muon on stacked layers that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("averaged")
    words = word_tokenizer("abcdefgh")
    data = tiny.data()
    data.tokenizer.fingerprint = words.fingerprint
    train(tiny.config(**BOTH), data, workdir)
    words.save(workdir / "tokenizer.json")
    return workdir


def test_killed_and_resumed_it_and_muon_are_equal_in_every_bit(whole, tmp_path):
    cfg, data = tiny.config(**BOTH), tiny.data()
    data.tokenizer.fingerprint = word_tokenizer("abcdefgh").fingerprint
    for step in (6, 9):
        with pytest.raises(Killed):
            train(cfg, data, tmp_path, progress=At(step, kill))
    train(cfg, data, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, saved(tmp_path, cfg), saved(whole, cfg))
    assert lines(tmp_path) == lines(whole)


def test_a_run_is_read_with_either_and_evaluated_with_the_one_it_names(whole):
    state = saved(whole, tiny.config(**BOTH))

    for weights, expected in (("", state.ema), ("ema", state.ema), ("raw", state.params)):
        found = nnx.to_pure_dict(nnx.state(load(whole, weights=weights).model, nnx.Param))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    evaluated = [line["loss"] for line in lines(whole) if line["split"] == "eval"]
    raw = tiny.config(**BOTH | {"eval__weights": "raw"})
    assert evaluated[-1] == pytest.approx(_loss(raw, state.ema), rel=1e-6)
    assert evaluated[-1] != pytest.approx(_loss(raw, state.params), rel=1e-6)


def test_what_is_not_there_is_refused(whole, tmp_path):
    with pytest.raises(UserError, match=r"^eval.weights: is ema while train.ema.decay = 0"):
        tiny.config(eval__weights="ema")
    with pytest.raises(UserError, match=r"^train.ema.decay: is 1.0"):
        tiny.config(train__ema__decay=1.0)
    with pytest.raises(UserError, match=r"^weights: is 'mean', give raw or ema"):
        load(whole, weights="mean")
    with pytest.raises(UserError, match=r"^weights: is ema, of which hf:x has none"):
        load("hf:x", weights="ema")
    data = tiny.data()
    words = word_tokenizer("abcdefgh")
    data.tokenizer.fingerprint = words.fingerprint
    train(tiny.config(train__num_steps=1), data, tmp_path)
    words.save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"^weights: is ema, of which the run in .* has none"):
        load(tmp_path, weights="ema")


def test_it_starts_from_the_parameters_of_another_run(whole, tmp_path):
    """At the first step with a rate of 0 the average is what was taken."""
    changes = {"schedule__warmup_steps": 10**6, "schedule__decay_steps": 10**7}
    more = {"train__init_from": str(whole), "train__init_paths": ("*",), "train__num_steps": 1}
    cfg = tiny.config(**BOTH | changes | more)
    train(cfg, tiny.data(), tmp_path)
    found, taken = saved(tmp_path, cfg), saved(whole, tiny.config(**BOTH))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found.ema, taken.params)


def _loss(cfg, params):

    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    return validation(cfg, graphdef, tiny.data().validation, None)(params)["loss"]
