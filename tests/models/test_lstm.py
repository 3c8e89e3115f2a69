"""The LSTM against NumPy, and what holds of every language model: padding, packing, decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from jaxformer.analysis.accounts import count_parameters, module_table
from jaxformer.analysis.invariants import decoding, packing, padding
from jaxformer.analysis.subjects import WORDS, Subject
from jaxformer.config import MeshConfig, ModelConfig, RunConfig
from jaxformer.config.lstm import UNREAD
from jaxformer.errors import UserError
from jaxformer.generation import Greedy, beam_search, generate
from jaxformer.models import abstract_params, build, init
from jaxformer.nn.dropout import RowKey
from jaxformer.sharding import make_mesh, params_shardings, path_of, put_batch
from jaxformer.training.metrics import flops_per_position
from tests.builders import apply, change, graphdef, leaves, make_model, random_params
from tests.training import tiny

LSTM = {"architecture": "lstm", "num_layers": 2, "d_model": 12, "vocab_size": 40, "max_length": 16}


@functools.cache
def config(**changes):
    return ModelConfig.from_config_dict(change(base.model(), LSTM | changes))


def tokens(*shape):
    return np.random.default_rng(shape).integers(0, 40, shape).astype(np.int32)


def close(actual, expected, tolerance=1e-5):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def oracle(cfg, params, ids, capped=lambda x: x):
    """Logits float64[L, V] of one document, a token and a gate at a time."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    p = jax.tree.map(np.float64, params)
    table = p["embedding"]["table"]
    head = p.get("head", {}).get("kernel", table.T)
    state = [(np.zeros(cfg.d_model), np.zeros(cfg.d_model)) for _ in p["layers"]]
    rows = []
    for token in ids:
        x = table[token] * (cfg.d_model**0.5 if cfg.scale_embeddings else 1)
        for n, layer in p["layers"].items():
            h, c = state[n]
            gates = x @ layer["input"]["kernel"] + h @ layer["recurrent"]["kernel"] + layer["bias"]
            i, f, g, o = np.split(gates, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            x = sigmoid(o) * np.tanh(c)
            state[n] = x, c
        rows.append(capped(x @ head + p.get("head", {}).get("bias", 0)))
    return np.array(rows)


@pytest.mark.parametrize(
    ("changes", "capped"),
    [
        ({}, lambda x: x),
        ({"tie_embeddings": False, "head_bias": True, "scale_embeddings": True}, lambda x: x),
        ({"logit_softcap": 2.0}, lambda x: 2 * np.tanh(x / 2)),
    ],
    ids=["tied", "untied", "capped"],
)
def test_logits_equal_numpys(changes, capped):
    cfg = config(**changes)
    params, ids_BL = random_params(cfg), tokens(3, 9)
    found = apply(cfg, params, ids_BL).logits
    close(found, [oracle(cfg, params, ids, capped) for ids in ids_BL])


@pytest.mark.parametrize("check", [padding, packing, decoding], ids=lambda c: c.__name__)
def test_invariant(check):
    cfg = config(vocab_size=2 * WORDS)
    assert check(Subject(cfg, graphdef(cfg), random_params(cfg))) is None


def test_causality_by_gradient():
    """What a token's state depends on: its document up to it, and nothing else."""
    cfg, segments_BL = config(), np.array([[1, 1, 1, 2, 2, 2, 0, 2]])
    params, ids_BL = random_params(cfg), np.arange(8)[None]

    def at(table):
        changed = params | {"embedding": {"table": table}}
        return apply(cfg, changed, ids_BL, segments_BL).hidden[0, 5].sum()

    size_V = np.abs(jax.grad(at)(params["embedding"]["table"])).max(1)[:8]
    np.testing.assert_array_equal(size_V > 0, [0, 0, 0, 1, 1, 1, 0, 0])


def test_generation_is_the_argmax_of_the_full_forward_pass():
    """Ragged prompts, beyond max_length; a beam of one is greedy."""
    cfg = config()
    model, lengths_B = make_model(cfg), np.array([5, 2, 4])
    prompts_BP = tokens(3, 5)
    how = {"max_new_tokens": 20, "eos_id": -1}
    out = generate(model, prompts_BP, lengths_B, sampler=Greedy(), key=jax.random.key(0), **how)
    beams = beam_search(model, prompts_BP, lengths_B, beam_size=1, **how)
    np.testing.assert_array_equal(beams.tokens_BNT[:, 0], out.tokens)
    for prompt, n, new in zip(prompts_BP, lengths_B, out.tokens, strict=True):
        text = np.concatenate([prompt[:n], new])
        logits_LV = np.asarray(apply(cfg, random_params(cfg), text[None]).logits)[0]
        np.testing.assert_array_equal(logits_LV[n - 1 : -1].argmax(-1), new)


def test_forget_gates_start_open_and_only_they():
    layer = init(config(), jax.random.key(0))["layers"][1]
    np.testing.assert_array_equal(layer["bias"].reshape(4, 12), np.eye(4)[1][:, None] * np.ones(12))


@pytest.mark.parametrize("where", ["embedding", "residual"])
def test_dropout_is_of_the_row_and_the_place(where):
    cfg = config(**{f"dropout.{where}": 0.5})
    params, ids_BL = random_params(cfg), np.tile(tokens(1, 6), (2, 1))
    out = apply(cfg, params, ids_BL, key=RowKey(jax.random.key(1), jnp.array([3, 4])))
    one = apply(cfg, params, ids_BL[:1], key=RowKey(jax.random.key(1), jnp.array([4])))
    close(one.logits[0], out.logits[1])
    assert np.abs(out.logits[0] - out.logits[1]).max() > 1e-3
    assert np.abs(out.logits[0] - apply(cfg, params, ids_BL).logits[0]).max() > 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_and_flops(tied):
    """V D (twice if untied) + N (8 D² + 4 D); 6 FLOPs a weight that is multiplied."""
    cfg = config(tie_embeddings=tied)
    params = abstract_params(build(cfg))
    expected = 40 * 12 * (2 - tied) + 2 * (8 * 12**2 + 4 * 12)
    total = module_table(cfg, length=8)[-1]
    assert count_parameters(params) == total["parameters"] == expected
    assert total["flops"] == 2 * (2 * 8 * 12**2 + 40 * 12)
    assert total["cache_bytes"] == 0
    run = base.get_config()
    run.model.update(LSTM | {"tie_embeddings": tied, "max_length": 64})
    assert flops_per_position(RunConfig.from_config_dict(run), params) == 3 * total["flops"]


def test_the_step_is_the_same_in_microbatches_and_on_a_mesh():
    """Its kernels have rows in the table of sharding.py."""
    lstm = {"model__architecture": "lstm", "model__position__kind": "none"}
    lstm |= {"model__num_heads": 4, "model__dropout__residual": 0.3}
    size = {"sgd_norm": 0.5, "rate": 0.5}
    whole = tiny.program(tiny.config(**lstm), **size)
    expected = whole.step(whole.state, tiny.batch())[1]
    parts = tiny.program(tiny.config(train__num_microbatches=4, **lstm), **size)
    found = [parts.step(parts.state, tiny.batch())[1]]
    mesh = make_mesh(MeshConfig(2, 4))
    assert mesh is not None
    with jax.set_mesh(mesh):
        spread = tiny.program(tiny.config(**lstm), mesh, **size)
        found.append(spread.step(spread.state, put_batch(mesh, tiny.batch()))[1])
    for one in found:
        for name in ("loss", "grad_norm", "weight"):
            np.testing.assert_allclose(one[name], expected[name], rtol=1e-5)
    shardings = params_shardings(mesh, abstract_params(build(config(d_model=16))))
    specs = {path_of(k): s.spec for k, s in jax.tree_util.tree_leaves_with_path(shardings)}
    assert specs["layers/0/recurrent/kernel"] == jax.sharding.PartitionSpec("fsdp", "tensor")


def test_every_field_is_read_or_refused():
    """The values that UNREAD allows are base.py's own, and any other is named."""
    defaults = base.model().to_dict()
    flat = leaves(defaults | {"position": leaves(defaults["position"])})
    for name, allowed in UNREAD.items():
        assert flat[name.replace(".", "/")].tolist() == allowed[0], name
    others = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v + 0.25}
    other = {"activation": "relu", "norm": "rmsnorm", "norm_placement": "post", "remat": "full"}
    other |= {"final_norm": "true", "layer_pattern": "rope", "position.kind": "rope"}
    other |= {
        "attention_kernel": "reference",
        "position.options": "a",
        "position.source.kind": "offset",
    }
    for name, allowed in UNREAD.items():
        value = other[name] if name in other else others[type(allowed[0])](allowed[0])
        with pytest.raises(UserError, match=rf"model\.{name}"):
            config(**{name: value})


READ = {
    "num_layers": 1,
    "d_model": 8,
    "vocab_size": 41,
    "tie_embeddings": False,
    "scale_embeddings": True,
    "scale_logits": True,
    "head_bias": True,
    "logit_softcap": 1.0,
    "initializer": "xavier",
}


@pytest.mark.parametrize("name", READ)
def test_a_field_changes_the_model(name):
    cfg, other = config(), config(**{name: READ[name]})
    a, b = (
        {p: x.tobytes() for p, x in leaves(init(c, jax.random.key(0))).items()}
        for c in (cfg, other)
    )
    if a != b:
        return
    params = random_params(cfg)
    logits = [np.asarray(apply(c, params, tokens(2, 5)).logits) for c in (cfg, other)]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3


def test_it_decodes_in_half_precision():
    model = make_model(config(), compute_dtype="bfloat16")
    prompts, lengths = tokens(2, 4), np.array([4, 4])
    how = {"max_new_tokens": 5, "sampler": Greedy(), "key": jax.random.key(0), "eos_id": -1}
    out = generate(model, prompts, lengths, **how)
    whole = np.concatenate([prompts, out.tokens], axis=1)
    logprobs_BLV = jax.nn.log_softmax(model(whole[:, :-1]).logits[:, 3:])
    chosen = np.take_along_axis(np.asarray(logprobs_BLV), out.tokens[..., None], 2)[..., 0]
    np.testing.assert_allclose(out.logprobs, chosen, atol=0.02)


def test_an_lstm_refuses_other_objectives_and_a_prefix():
    run = base.get_config()
    run.model.update(LSTM | {"max_length": 64})
    run.objective.kind = "prefix_lm"
    with pytest.raises(UserError, match=r"set model\.architecture = decoder"):
        RunConfig.from_config_dict(run)
    with pytest.raises(ValueError, match="prefix"):
        apply(config(), random_params(config()), tokens(1, 3), prefix=np.ones((1, 3), bool))
    with pytest.raises(ValueError, match="attention_weights"):
        apply(config(), random_params(config()), tokens(1, 3), capture=("attention_weights",))
