"""Accounts of parameters, FLOPs, activations and cache, against formulas and real arrays."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxformer.analysis.accounts import active_parameters, count_parameters, flops, module_table
from jaxformer.models import abstract_params, build
from jaxformer.nn.cache import init_cache
from jaxformer.training.metrics import flops_per_position
from tests.builders import PAIRS, grid_config, model_config, row_id
from tests.training import tiny

ARCHITECTURES = ("decoder", "encoder", "encoder_decoder")


def wide(d_model=768, num_heads=12, **changes):
    changes = {"d_ff": 0, "num_layers": 3, "max_length": 65536} | changes
    return model_config(d_model=d_model, num_heads=num_heads, **changes)


def rows(cfg, length=8, **options):
    return {row["module"]: row for row in module_table(cfg, length=length, **options)}


@pytest.mark.parametrize(
    ("length", "percent"),
    [(128, 2.7), (512, 10.0), (1024, 18.2), (4096, 47.1), (16384, 78.0), (65536, 93.4)],
)
def test_share_of_the_attention_matrix(length, percent):
    """n / (n + 6 d) of a block's FLOPs, d = 768, for any number of heads."""
    for num_heads in (1, 12):
        found = flops(wide(num_heads=num_heads), length=length)
        share = found.attention_matrix / (found.total - found.head)
        assert share == length / (length + 6 * 768)
        assert round(100 * share, 1) == percent


@pytest.mark.parametrize(
    ("length", "ratio"), [(128, 0.0625), (512, 0.25), (1024, 0.5), (2048, 1.0)]
)
def test_attention_matrix_against_feed_forward(length, ratio):
    """4 n² d against 4 n d d_ff, d = 512, d_ff = 2048: equal at n = d_ff."""
    found = flops(wide(512, 8, d_ff=2048, num_layers=6), length=length)
    assert length * found.attention_matrix == 6 * 4 * length**2 * 512
    assert length * found.feed_forward == 6 * 4 * length * 512 * 2048
    assert found.attention_matrix / found.feed_forward == ratio


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    ("layers", "heads", "head_dim", "expected"), [(6, 8, 64, 12_288), (80, 64, 128, 2_621_440)]
)
def test_cache_bytes_of_a_token(layers, heads, head_dim, expected, scan_layers):
    cfg = model_config(
        num_layers=layers, num_heads=heads, d_model=heads * head_dim, scan_layers=scan_layers
    )
    assert rows(cfg, compute_dtype="bfloat16")["total"]["cache_bytes"] == expected


@pytest.mark.parametrize("row", PAIRS[::4], ids=row_id)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_totals(row, architecture):
    """Parameters are those of the model, FLOPs 2 a weight, the cache is that of init_cache."""
    cfg = grid_config(row, architecture=architecture)
    found, params = rows(cfg), abstract_params(build(cfg))
    assert found["total"]["parameters"] == count_parameters(params)
    kernels = {
        path: math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if path[-1].key == "kernel"
    }
    idle = cfg.moe.num_experts - cfg.moe.top_k
    products = 2 * sum(kernels.values()) - 2 * sum(
        size * idle // cfg.moe.num_experts
        for path, size in kernels.items()
        if "experts" in {getattr(key, "key", None) for key in path}
    )
    products += 2 * cfg.d_model * cfg.vocab_size * cfg.tie_embeddings
    matrices = sum(r["flops"] for m, r in found.items() if m.endswith("matrix"))
    assert found["total"]["flops"] == products + matrices == flops(cfg, length=8).total
    cache = jax.eval_shape(lambda: init_cache(cfg, 1, 1))
    sizes = sum(leaf.size * 4 for leaf in jax.tree.leaves(cache.layers))
    sizes = 0 if architecture == "encoder" else sizes * (1 + (architecture != "decoder"))
    assert found["total"]["cache_bytes"] == sizes


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_stacked_and_unrolled_layers_have_the_same_table(architecture):
    tables = [
        module_table(model_config(architecture=architecture, scan_layers=scan), length=8)
        for scan in (False, True)
    ]
    assert tables[0] == tables[1]


def test_the_table_of_a_small_decoder():
    cfg = model_config(num_kv_heads=2, activation="swiglu", tie_embeddings=False)
    found = [
        tuple(row.values())[:4] for row in module_table(cfg, length=10, compute_dtype="float32")
    ]
    assert found == [
        ("embedding", "40 x 16", 640, 0),
        ("position/learned", "16 x 16", 256, 0),
        ("layers/attention/query", "2 of 16 x 16", 544, 1024),
        ("layers/attention/key", "2 of 16 x 8", 272, 512),
        ("layers/attention/value", "2 of 16 x 8", 272, 512),
        ("layers/attention/output", "2 of 16 x 16", 544, 1024),
        ("layers/attention/matrix", "2 of 4 heads x 10 keys", 0, 1280),
        ("layers/attention_norm", "2 of 16", 64, 0),
        ("layers/feed_forward/up", "2 of 16 x 32", 1088, 2048),
        ("layers/feed_forward/gate", "2 of 16 x 32", 1088, 2048),
        ("layers/feed_forward/down", "2 of 32 x 16", 1056, 2048),
        ("layers/feed_forward_norm", "2 of 16", 64, 0),
        ("final_norm", "16", 32, 0),
        ("head", "16 x 40", 640, 1280),
        ("total", "", 6560, 11776),
    ]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"window": 3}, 2 * 3),
        ({"window": 100}, 2 * 10),
        ({"window": 3, "architecture": "encoder"}, 2 * 5),
        ({"layer_pattern": "rope:window=4, none", "position.kind": "rope"}, 4 + 10),
    ],
    ids=str,
)
def test_windows_cost_less(changes, keys):
    found = rows(model_config(**changes), length=10)
    assert found["layers/attention/matrix"]["flops"] == 4 * 16 * keys


def test_the_attention_matrix_of_a_source_of_another_length():
    cfg = model_config(architecture="encoder_decoder", num_encoder_layers=3)
    found = rows(cfg, length=10, source_length=7)
    assert found["encoder/layers/attention/matrix"]["flops"] == 3 * 4 * 16 * 7
    assert found["decoder/layers/attention/matrix"]["flops"] == 2 * 4 * 16 * 10
    assert found["decoder/layers/cross_attention/matrix"]["flops"] == 2 * 4 * 16 * 7
    assert found["encoder/layers/attention/key"]["cache_bytes"] == 0


def test_mfu_counts_the_same():
    """A training step is three forward passes."""
    cfg = tiny.config(model__tie_embeddings=False, model__activation="swiglu")
    counted = flops_per_position(cfg, abstract_params(build(cfg.model)))
    assert counted == 3 * flops(cfg.model, length=cfg.data.length).total


@pytest.mark.parametrize("scan_layers", [False, True])
def test_of_experts_the_top_k_are_counted(scan_layers):
    """Two layers of three experts of 2 · 8 · 20 weights, two a token; and a shared one."""
    moe = {"moe.num_experts": 3, "moe.d_ff": 20, "moe.shared_d_ff": 12, "d_ff": 0}
    cfg = model_config(d_model=8, scan_layers=scan_layers, feed_forward_bias=False, **moe)
    found = flops(cfg, length=8).feed_forward
    assert found == 2 * 2 * (2 * 2 * 8 * 20 + 2 * 8 * 12 + 8 * 3)
    table = rows(cfg)
    assert table["layers/feed_forward/experts/up"]["parameters"] == 2 * 3 * 8 * 20
    assert table["layers/feed_forward/experts/up"]["shape"] == "2 of 3 x 8 x 20"
    kept = table["layers/feed_forward/experts/up"]["activation_bytes"]
    assert kept == 2 * 2 * 4 * (8 + 20)
    total = count_parameters(abstract_params(build(cfg)))
    assert active_parameters(cfg) == total - 2 * 2 * 8 * 20
    assert active_parameters(model_config()) == count_parameters(
        abstract_params(build(model_config()))
    )


def test_mfu_counts_the_same_of_experts():
    cfg = tiny.config(model__moe__num_experts=6, model__activation="swiglu")
    counted = flops_per_position(cfg, abstract_params(build(cfg.model)))
    assert counted == 3 * flops(cfg.model, length=cfg.data.length).total


def test_fire_is_computed_for_each_key_and_layer_that_has_it():
    """1 → 5 → 4 heads, in one layer of two; an encoder's three layers over 7 keys."""
    fire = {"position.kind": "fire", "position.fire.width": 5}
    cfg = model_config(layer_pattern="fire, none", **fire)
    found = rows(cfg, length=10)
    hidden, heads = found["position/fire/hidden"], found["position/fire/heads"]
    assert (hidden["flops"], heads["flops"]) == (10 * 2 * 5, 10 * 2 * 5 * 4)
    assert (hidden["activation_bytes"], heads["activation_bytes"]) == (240, 200)
    assert found["position/fire"] == {"module": "position/fire", "shape": ""} | dict.fromkeys(
        ("flops", "activation_bytes", "cache_bytes"), 0
    ) | {"parameters": 2}
    both = model_config(architecture="encoder_decoder", num_encoder_layers=3, **fire)
    found = rows(both, length=10, source_length=7)
    assert found["encoder/position/fire/hidden"]["flops"] == 3 * 7 * 2 * 5
    assert found["decoder/position/fire/hidden"]["flops"] == 2 * 10 * 2 * 5
    assert (
        flops(both, length=10).projections
        == flops(
            model_config(architecture="encoder_decoder", num_encoder_layers=3), length=10
        ).projections
    )


@pytest.mark.parametrize("kind", ["fire", "t5", "kerple_log", "learned_alibi"])
def test_mfu_counts_the_same_of_biases(kind):
    cfg = tiny.config(model__position__kind=kind)
    counted = flops_per_position(cfg, abstract_params(build(cfg.model)))
    assert counted == 3 * flops(cfg.model, length=cfg.data.length).total


def test_a_row_is_classified_once():
    cfg = model_config(
        architecture="encoder", d_model=64, **{"head.kind": "sequence", "head.num_classes": 5}
    )
    found = rows(cfg, length=8)
    assert found["head/pooler"]["flops"] == 2 * 64 * 64 // 8
    assert found["head/classifier"]["flops"] == 2 * 64 * 5 // 8


def activations(**changes):
    """Bytes of one layer of width 64 and 4 heads over 32 tokens."""
    cfg = wide(64, 4, num_layers=1, norm_placement="pre", **changes)
    found = rows(cfg, length=32, compute_dtype="bfloat16")
    return sum(r["activation_bytes"] for m, r in found.items() if m.startswith("layers/"))


def test_activations_equal_published_formulas():
    """Korthikanti et al. 2022 eq. 1: a layer keeps 34 h + 5 a s bytes of a token in 16 bits.

    Of the 5, one is a mask, two the dropped weights, two the softmax, which is float32 here: 7.
    """
    dropout = {"dropout.attention": 0.1, "dropout.residual": 0.1}
    assert activations(**dropout) == 34 * 64 + 7 * 4 * 32
    assert activations() == 32 * 64 + 4 * 4 * 32
    assert activations(remat="full") == 2 * 64
    assert activations(remat="dots") == 2 * 64 + 4 * (4 * 64 + 4 * 64)


def kept_by_jax(cfg, length):
    """Bytes that the forward pass leaves for the backward pass, parameters apart."""

    def residuals(params):
        def loss(params):
            model = nnx.merge(nnx.split(build(cfg))[0], params)
            return model(jnp.zeros((1, length), jnp.int32)).logits.var()

        known = {id(leaf) for leaf in jax.tree.leaves(params)}
        kept = {id(leaf): leaf for leaf in jax.tree.leaves(jax.vjp(loss, params)[1])}
        return [leaf for name, leaf in kept.items() if name not in known]

    found = jax.eval_shape(residuals, abstract_params(build(cfg)))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in found)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("remat", ["none", "full", "dots"])
def test_activations_are_what_the_backward_pass_is_given(remat, placement):
    """Of one layer more, with recomputation to the byte; without it JAX keeps more elementwise
    results, which XLA may compute again."""
    length, real, ours = 64, [], []
    for num_layers in (1, 2):
        changes = {"num_layers": num_layers, "remat": remat, "norm_placement": placement}
        cfg = wide(64, 4, **changes, vocab_size=50)
        real.append(kept_by_jax(cfg, length) / length)
        ours.append(rows(cfg, length=length)["total"]["activation_bytes"])
    if remat == "none":
        assert ours[1] - ours[0] <= real[1] - real[0] <= 3 * (ours[1] - ours[0])
    else:
        assert real[1] - real[0] == ours[1] - ours[0]


@pytest.mark.parametrize("tied", [True, False])
def test_what_kernels_and_chunks_of_logits_do_not_keep(tied):
    """Float32 weights of 3 layers of 12 heads x 16 keys; 12 of 16 positions of float32 logits."""
    plain = {"vocab_size": 100, "tie_embeddings": tied}
    sizes = [
        rows(wide(**plain, **changes), length=16)["total"]["activation_bytes"]
        for changes in ({}, {"attention_kernel": "blockwise"}, {"logit_chunk": 4})
    ]
    assert sizes[0] - sizes[1] == 3 * 12 * 16 * 4
    assert sizes[0] - sizes[2] == 4 * 100 * 12 / 16
