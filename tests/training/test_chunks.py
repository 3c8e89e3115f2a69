"""model.logit_chunk: the same losses and updates without all logits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer.config import MeshConfig, RunConfig
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import Perplexity
from jaxformer.models import abstract_params, build, init
from jaxformer.sharding import make_mesh, put_batch
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import TrainState
from jaxformer.training.step import make_train_step
from tests.training import tiny

SMOOTH = {"objective__label_smoothing": 0.1, "objective__z_loss": 0.01}
MODELS = {
    "decoder": tiny.DROPOUT | {"train__num_microbatches": 2, "model__logit_softcap": 3.0},
    "encoder": {
        "model__architecture": "encoder",
        "objective__kind": "masked_lm",
        "data__source": "text",
        "data__path": "a.txt",
        "model__head__transform": True,
        "model__head_bias": True,
        "model__tie_embeddings": False,
    },
    "encoder_decoder": tiny.SEQ2SEQ,
    "lstm": {"model__architecture": "lstm", "model__position__kind": "none"},
}


def batch(name):
    rows = tiny.batch()
    if name != "encoder_decoder":
        return rows
    source = {"source": "tokens", "source_segment_ids": "segment_ids"}
    source |= {"source_positions": "positions"}
    return rows | {other: rows[own] for other, own in source.items()}


def changes(name):
    heads = {} if name != "lstm" else {"model__num_heads": 4}
    return SMOOTH | MODELS[name] | heads


@pytest.mark.parametrize(("name", "chunk"), [("decoder", 3), ("encoder", 100)])
def test_one_update_is_the_same(name, chunk):
    """3 of 8 positions at a time, the last ones fewer; or more than there are."""
    program = tiny.program(tiny.config(**changes(name)), sgd_norm=0.5, rate=0.5)
    chunked = tiny.config(**changes(name), model__logit_chunk=chunk)
    chunked = tiny.program(chunked, sgd_norm=0.5, rate=0.5)
    expected, sums = program.step(program.state, batch(name))
    found, found_sums = chunked.step(program.state, batch(name))
    assert sums["correct"] > 0
    for metric, value in sums.items():
        np.testing.assert_allclose(found_sums[metric], value, rtol=1e-5, err_msg=metric)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), expected.params, program.state.params)
    assert max(jax.tree.leaves(moved)) > 0.01
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        found.params,
        expected.params,
    )


def test_on_a_mesh():
    mesh = make_mesh(MeshConfig(2, 4))
    plain = tiny.program(tiny.config(**SMOOTH), sgd_norm=0.5, rate=0.5)
    _, sums = plain.step(plain.state, tiny.batch())
    assert mesh is not None
    with jax.set_mesh(mesh):
        cfg = tiny.config(**SMOOTH, model__logit_chunk=3)
        spread = tiny.program(cfg, mesh, sgd_norm=0.5, rate=0.5)
        _, found = spread.step(spread.state, put_batch(mesh, tiny.batch()))
    for metric in ("loss", "correct", "total", "grad_norm"):
        np.testing.assert_allclose(found[metric], sums[metric], rtol=1e-5, err_msg=metric)


@pytest.mark.parametrize("name", ["decoder", "encoder_decoder", "lstm"])
def test_evaluation_gives_the_same_sums(name):
    plain, chunked = (tiny.config(**changes(name), model__logit_chunk=n).model for n in (0, 3))
    params = init(plain, jax.random.key(0))
    rows = {key: jnp.asarray(x) for key, x in batch(name).items()}

    def sums(cfg):
        graphdef, _ = nnx.split(build(cfg))
        return jax.jit(lambda p: Perplexity().sums(nnx.merge(graphdef, p), rows))(params)

    found, expected = sums(chunked), sums(plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
    assert expected["accuracy"][0] > 0


def test_memory_of_a_large_vocabulary():
    """128k words and 4,096 tokens: a quarter of the temporary memory, at most (compiled only)."""

    def temporary(chunk):
        c = base.get_config()
        c.model.update(num_layers=1, d_model=32, vocab_size=131072, max_length=4096)
        c.model.update(logit_chunk=chunk, attention_kernel="blockwise")
        c.data.length, c.train.num_steps, c.train.num_epochs = 4096, 1000, 0.0
        cfg = RunConfig.from_config_dict(c).resolve(vocab_size=131072, steps_per_epoch=1)
        graphdef, _ = nnx.split(build(cfg.model))
        tx, schedule = make_optimizer(cfg)
        params = abstract_params(build(cfg.model))
        zero = jax.ShapeDtypeStruct((), jnp.int32)
        state = TrainState(zero, params, jax.eval_shape(tx.init, params), {}, zero, zero)
        names = ("tokens", "targets", "segment_ids", "positions")
        rows = {name: jax.ShapeDtypeStruct((1, 4096), jnp.int32) for name in names}
        rows["weights"] = jax.ShapeDtypeStruct((1, 4096), jnp.float32)
        rows["rows"] = jax.ShapeDtypeStruct((1,), jnp.int32)
        step = jax.jit(make_train_step(graphdef, tx, schedule, cfg), donate_argnums=0)
        return step.lower(state, rows).compile().memory_analysis().temp_size_in_bytes

    plain, chunked = temporary(0), temporary(256)
    print(f"temporaries: {plain / 2**20:,.0f} MiB, in chunks {chunked / 2**20:,.0f} MiB")
    assert plain > 4096 * 131072 * 4
    assert 4 * chunked < plain


def test_classes_have_no_chunks():
    kind = {"objective__kind": "token_classification", "model__head__kind": "token"}
    with pytest.raises(UserError, match=r"model.logit_chunk.*head.kind = vocabulary"):
        tiny.config(**kind, model__architecture="encoder", model__logit_chunk=2)
