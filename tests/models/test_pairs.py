"""Every pair of options builds, runs forward, backward and cached decoding, or is refused."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.models.forward import forward
from jaxformer.nn.cache import init_cache
from tests.builders import graphdef, model_config, pairwise, random_params, row_id

ARCHITECTURES = ("decoder", "encoder", "encoder_decoder")
CLASSES = {"head.num_classes": 3}
AXES = {
    "architecture": {n: {"architecture": n} for n in ARCHITECTURES},
    "head": {
        "tied": {},
        "untied": {"tie_embeddings": False, "head_bias": True},
        "transform": {"head.transform": True},
        "first": {"head.kind": "sequence"} | CLASSES,
        "mean": {"head.kind": "sequence", "head.pooling": "mean"} | CLASSES,
        "token": {"head.kind": "token"} | CLASSES,
    },
    "position": {n: {"position.kind": n} for n in ("none", "sinusoidal", "learned", "rope", "t5")},
    "reach": {
        "all": {},
        "window": {"window": 2},
        "pattern": {"layer_pattern": "rope:window=2, none"},
    },
    "placement": {n: {"norm_placement": n} for n in ("pre", "post", "sandwich", "none")},
    "norm": {"layernorm": {}, "rmsnorm": {"norm": "rmsnorm"}},
    "activation": {n: {"activation": n} for n in ("relu", "gelu", "gelu_exact", "silu", "swiglu")},
    "heads": {"mha": {}, "gqa": {"num_kv_heads": 2}, "mqa": {"num_kv_heads": 1}},
    "initializer": {n: {"initializer": n} for n in ("gpt2", "bert", "xavier", "t5", "lecun")},
    "remat": {n: {"remat": n} for n in ("none", "full", "dots")},
    "layers": {"unrolled": {}, "scanned": {"scan_layers": True}},
    "embeddings": {
        "shared": {},
        "apart": {"share_embeddings": False},
        "normed": {"embedding_norm": True, "scale_embeddings": True},
    },
    "experts": {
        "": {},
        "experts": {"moe.num_experts": 3},
        "switch": {"moe.num_experts": 3, "moe.top_k": 1, "moe.normalize_top_k": False}
        | {"moe.every": 2, "moe.shared_d_ff": 8, "moe.capacity_factor": 0.5},
    },
    "biases": {
        "": {},
        "none": {"attention_bias": False, "attention_output_bias": False}
        | {"feed_forward_bias": False, "layernorm.bias": False},
    },
    "qk": {"": {}, "qk_norm": {"qk_norm": True}},
    "cap": {"": {}, "cap": {"attention_softcap": 5.0}},
    "logits": {"": {}, "capped": {"logit_softcap": 5.0}, "scaled": {"scale_logits": True}},
    "sink": {"": {}, "sink": {"attention_sink": True}},
    "scale": {"": {}, "unscaled": {"scale_attention": False}},
    "residual": {"": {}, "cut": {"residual": False}},
    "encoder": {"": {}, "deep": {"num_encoder_layers": 3}},
}


BASE = model_config(d_model=8, d_ff=8, **{"dropout.residual": 0.1})


@functools.cache
def read(items):
    """The config of some axes' values, or None where it is refused."""
    cfg = BASE
    for axis, value in items:
        for path, new in AXES[axis][value].items():
            section, _, name = path.rpartition(".")
            if section:  # one level deep
                name, new = section, dataclasses.replace(getattr(cfg, section), **{name: new})
            cfg = dataclasses.replace(cfg, **{name: new})
    try:
        cfg.check()
    except UserError:
        return None
    return cfg


def fits(row):
    """Whether a part of a row is possible, in some architecture if it names none."""
    choices = [row] if "architecture" in row else [row | {"architecture": n} for n in ARCHITECTURES]
    return any(read(tuple(sorted(choice.items()))) for choice in choices)


ROWS = pairwise({axis: list(values) for axis, values in AXES.items()}, fits)
TOKENS = np.random.default_rng(0).integers(0, 40, (2, 6)).astype(np.int32)
IDS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], np.int32)
FIRST = np.array([[1, 1, 1, 0, 0, 0]] * 2, np.int32)  # segment ids of the first part of decoding
BATCH = {
    "tokens": TOKENS,
    "segment_ids": IDS,
    "positions": None,
    "source": TOKENS[:, ::-1],
    "source_segment_ids": IDS,
    "source_positions": None,
}


def test_every_pair_runs_or_is_refused():
    """What no row has is refused for itself; few pairs are."""
    pairs = {
        pair
        for (a, x), (b, y) in itertools.combinations(AXES.items(), 2)
        for pair in itertools.product([(a, v) for v in x], [(b, v) for v in y])
    }
    met = {pair for row in ROWS for pair in itertools.combinations(row.items(), 2)}
    refused = {" & ".join(f"{axis}={value}" for axis, value in pair) for pair in pairs - met}
    assert not any(fits(dict(pair)) for pair in pairs - met)
    classes = ("first", "mean", "token")
    others = ("decoder", "encoder_decoder")
    expected = {f"architecture={a} & head={h}" for a in others for h in classes}
    expected |= {f"head={h} & logits={x}" for h in classes for x in ("capped", "scaled")}
    expected |= {"position=t5 & reach=pattern"}  # no layer of the pattern would read it
    expected |= {f"head={h} & encoder=deep" for h in classes}  # an encoder has no other encoder
    expected |= {f"architecture={a} & encoder=deep" for a in ("decoder", "encoder")}
    expected |= {"head=transform & activation=swiglu", "reach=pattern & layers=scanned"}
    expected |= {"layers=scanned & experts=switch"}  # every other layer
    assert refused == expected


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_runs(row):
    """Gradients with dropout, and cached decoding in two parts that equals the full pass.

    Op by op and in one shape, so that what XLA compiles for one row serves the others; the whole
    is traced as one program too.
    """
    cfg = read(tuple(sorted(row.items())))
    assert cfg is not None
    params = random_params(cfg)

    def program(params):
        def loss(params):
            out = forward(nnx.merge(graphdef(cfg), params), BATCH, key=jax.random.key(0))
            return jnp.square(jax.nn.log_softmax(out.logits)).mean()

        model = nnx.merge(graphdef(cfg), params)
        full = forward(model, BATCH).logits
        value, gradients = jax.value_and_grad(loss)(params)
        if cfg.architecture == "encoder":
            return value, gradients, full, full
        cache, decode = init_cache(cfg, 2, 6), model
        if cfg.architecture == "encoder_decoder":
            hidden_BSD = model.encode(BATCH["source"], IDS)
            cache, decode = model.attach(cache, hidden_BSD, jnp.asarray(IDS)), model.decode
        first = decode(TOKENS, FIRST, cache=cache)
        second = decode(TOKENS, 1 - FIRST, cache=first.cache)
        decoded = jnp.where(FIRST[..., None] == 1, first.logits, second.logits)
        return value, gradients, full[:, :4], decoded[:, :4]

    with jax.disable_jit(cfg.scan_layers):
        value, gradients, full, decoded = program(params)
    traced = jax.eval_shape(program, params)
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.shape, b.shape), traced[1], gradients)
    assert np.isfinite(value)
    used = [np.isfinite(g).all() and g.any() for g in jax.tree.leaves(gradients)]
    assert np.mean(used) > 0.8  # ReLU and the keys' bias may have none
    scale = max(1.0, float(np.abs(full).max()))
    np.testing.assert_allclose(decoded, full, rtol=0, atol=1e-5 * scale)
