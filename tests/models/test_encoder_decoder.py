"""The encoder-decoder against the oracle and by property."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer.models import init
from jaxformer.nn.cache import init_cache
from tests import oracle
from tests.builders import (
    PAIRS,
    apply,
    graphdef,
    grid_config,
    leaves,
    model_config,
    random_params,
    row_id,
)

RNG = np.random.default_rng(0)
SOURCE, TARGET = (RNG.integers(0, 40, shape).astype(np.int32) for shape in ((4, 9), (4, 7)))
SOURCE_IDS = np.array(
    [[1, 1, 1, 1, 2, 2, 2, 3, 3], [0, 1, 1, 0, 1, 1, 0, 0, 0], [1, 1, 0, 2, 2, 2, 2, 0, 0], [1] * 9]
).astype(np.int32)
TARGET_IDS = np.array(
    [[1, 1, 2, 2, 2, 3, 3], [1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 2, 2, 2], [1] * 7]
).astype(np.int32)


def both(**changes):
    return model_config(architecture="encoder_decoder", **changes)


def compare(cfg):
    params = random_params(cfg)
    unrolled = random_params(dataclasses.replace(cfg, scan_layers=False))
    logits_BLV = np.asarray(apply(cfg, params, SOURCE, TARGET, SOURCE_IDS, TARGET_IDS).logits)
    for b in range(4):
        expected_LV = oracle.row_logits(
            cfg, unrolled, TARGET[b], TARGET_IDS[b], SOURCE[b], SOURCE_IDS[b]
        )
        error = np.abs(logits_BLV[b] - expected_LV)[TARGET_IDS[b] != 0].max()
        assert error < 1e-5 * max(1, np.abs(expected_LV).max()), error


@pytest.mark.parametrize("number", range(1, len(PAIRS), 3), ids=lambda n: row_id(PAIRS[n]))
def test_logits_equal_the_oracle(number):
    """Every third row of the decoder's cover; embeddings shared and not, encoders of 1 or 2."""
    changes = {"share_embeddings": number % 2 == 0, "num_encoder_layers": number // 2 % 2}
    compare(grid_config(PAIRS[number], architecture="encoder_decoder", **changes))


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "none"])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_placements_equal_the_oracle(placement, scan_layers):
    changes = {"share_embeddings": False, "num_encoder_layers": 3, "position.kind": "sinusoidal"}
    compare(both(norm_placement=placement, scan_layers=scan_layers, **changes))


def test_names_of_parameters():
    """With shared embeddings one table; each side has positions, layers and a final norm."""
    names = set(leaves(random_params(both())))
    tables = {name for name in names if name.endswith("table")}
    sides = {f"{side}/position/learned/table" for side in ("encoder", "decoder")}
    assert tables == {"embedding/table"} | sides
    own = {n for n in leaves(random_params(both(share_embeddings=False))) if n.endswith("table")}
    assert own == {f"{side}/embedding/table" for side in ("encoder", "decoder")} | sides
    parts = {n.split("/")[3] for n in names if n.startswith("decoder/layers/1/")}
    attentions = {"attention", "cross_attention"}
    assert parts - {n.split("/")[3] for n in names if n.startswith("encoder/layers/1/")} == {
        "cross_attention",
        "cross_attention_norm",
    }
    assert attentions | {f"{n}_norm" for n in attentions} <= parts


def test_layers_of_encoder_and_decoder_start_differently_and_by_path():
    scanned, unrolled = (init(both(scan_layers=s), jax.random.key(0)) for s in (True, False))
    for side in ("encoder", "decoder"):
        stacked = scanned[side]["layers"]["attention"]["query"]["kernel"]
        for i in range(2):
            one = unrolled[side]["layers"][i]["attention"]["query"]["kernel"]
            np.testing.assert_array_equal(stacked[i], one)
    kernels = [
        unrolled[side]["layers"][0]["attention"]["query"]["kernel"]
        for side in ("encoder", "decoder")
    ]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3


ROWS = {
    "vaswani": {"norm_placement": "post", "position.kind": "sinusoidal", "activation": "relu"},
    "rope": {"position.kind": "rope", "num_kv_heads": 2, "qk_norm": True, "attention_sink": True},
    "scanned": {"position.kind": "learned", "scan_layers": True, "share_embeddings": False},
    "windows": {"position.kind": "rope", "layer_pattern": "rope:window=2, none"}
    | {"num_encoder_layers": 2},
}


@pytest.mark.parametrize("name", ROWS)
def test_cached_decoding_equals_the_full_pass(name):
    """Encode once, cross keys and values once; ragged prefill, then a token at a time."""
    cfg = both(**({"num_encoder_layers": 1} | ROWS[name]))
    params = random_params(cfg)
    source_ids_BS = (np.arange(9) < np.array([[9], [4], [1], [6]])).astype(np.int32)
    full_BLV = np.asarray(apply(cfg, params, SOURCE, TARGET, source_ids_BS).logits)

    @jax.jit
    def start(params):
        model = nnx.merge(graphdef(cfg), params)
        hidden_BSD = model.encode(SOURCE, source_ids_BS)
        return model.attach(init_cache(cfg, 4, 8), hidden_BSD, jnp.asarray(source_ids_BS))

    @jax.jit
    def step(params, ids_BL, segment_ids_BL, cache):
        out = nnx.merge(graphdef(cfg), params).decode(ids_BL, segment_ids_BL, cache=cache)
        return out.logits, out.cache

    cache, at_B = start(params), np.zeros(4, int)
    source_before = jax.tree.map(np.asarray, cache.source_layers)
    for counts_B, width in (([3, 1, 2, 0], 3), *[([1, 1, 1, 1], 1)] * 4, ([0, 1, 1, 1], 1)):
        ids_BL, segments_BL = np.zeros((2, 4, width), np.int32)
        for b, n in enumerate(counts_B):
            ids_BL[b, :n], segments_BL[b, :n] = TARGET[b, at_B[b] : at_B[b] + n], 1
        logits_BLV, cache = step(params, ids_BL, segments_BL, cache)
        for b, n in enumerate(counts_B):
            expected = full_BLV[b, at_B[b] : at_B[b] + n]
            np.testing.assert_allclose(logits_BLV[b, :n], expected, atol=3e-5)
        at_B = at_B + counts_B
    np.testing.assert_array_equal(cache.length_B, at_B)
    jax.tree.map(np.testing.assert_array_equal, source_before, cache.source_layers)


def test_encode_then_decode_is_the_whole_pass():
    cfg = both(**{"dropout.residual": 0.2})
    model, key = nnx.merge(graphdef(cfg), random_params(cfg)), jax.random.key(1)
    whole = model(SOURCE, TARGET, SOURCE_IDS, TARGET_IDS, key=key)
    hidden_BSD = model.encode(SOURCE, SOURCE_IDS, key=key)
    parts = model.decode(
        TARGET, TARGET_IDS, hidden=hidden_BSD, source_segment_ids=SOURCE_IDS, key=key
    )
    np.testing.assert_array_equal(whole.logits, parts.logits)
    np.testing.assert_allclose(model.readout(whole.hidden), whole.logits, atol=1e-6)


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_padding_of_source_and_target_changes_nothing(position):
    cfg = both(**{"position.kind": position})
    params, source_BS, target_BL = random_params(cfg), SOURCE[:, :5], TARGET[:, :4]
    plain_BLV = np.asarray(apply(cfg, params, source_BS, target_BL).logits)
    found = []
    for fill in (0, 39):
        sources, targets = np.full((4, 9), fill, np.int32), np.full((4, 7), fill, np.int32)
        source_ids, target_ids = np.zeros((4, 9), np.int32), np.zeros((4, 7), np.int32)
        for b, (i, j) in enumerate([(0, 0), (4, 3), (2, 1), (0, 3)]):
            sources[b, i : i + 5], source_ids[b, i : i + 5] = source_BS[b], 1
            targets[b, j : j + 4], target_ids[b, j : j + 4] = target_BL[b], 1
        logits = np.asarray(apply(cfg, params, sources, targets, source_ids, target_ids).logits)
        found.append(logits[target_ids != 0])
        np.testing.assert_allclose(found[-1].reshape(plain_BLV.shape), plain_BLV, atol=2e-5)
    np.testing.assert_array_equal(*found)


def test_what_a_target_token_depends_on():
    """All of its source, and target tokens that are not later."""
    cfg = both(share_embeddings=False)
    params = random_params(cfg)
    source_BS, target_BL = np.arange(5, dtype=np.int32)[None], np.arange(6, dtype=np.int32)[None]
    source_ids_BS = np.array([[1, 1, 1, 1, 0]], np.int32)
    weights_D = np.random.default_rng(1).normal(size=cfg.d_model)

    @jax.jit
    @jax.grad
    def gradient_at(tables, place):
        sides = {s: params[s] | {"embedding": {"table": t}} for s, t in tables.items()}
        out = apply(cfg, params | sides, source_BS, target_BL, source_ids_BS)
        return (out.hidden[0, place] * weights_D).sum()

    tables = {side: params[side]["embedding"]["table"] for side in ("encoder", "decoder")}
    for place in (0, 3, 5):
        gradient = jax.tree.map(lambda g: (np.asarray(g) != 0).any(1), gradient_at(tables, place))
        assert gradient["encoder"][:5].tolist() == [True] * 4 + [False]
        assert gradient["decoder"][:6].tolist() == [i <= place for i in range(6)]


def test_a_row_without_a_source_gets_a_plain_decoder():
    """Nothing to attend to: cross-attention adds its output bias, nothing becomes NaN."""
    cfg = both()
    params, nothing = random_params(cfg), np.zeros((4, 9), np.int32)
    first, second = (
        np.asarray(apply(cfg, params, s, TARGET, nothing).logits) for s in (SOURCE, SOURCE[::-1])
    )
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_captures(scan_layers):
    cfg = both(scan_layers=scan_layers, num_encoder_layers=1)
    names = ("attention_weights", "cross_attention_weights", "hidden_states")
    out = apply(cfg, random_params(cfg), SOURCE, TARGET, SOURCE_IDS, TARGET_IDS, capture=names)
    assert {n: x.shape for n, x in out.captured.items()} == {
        "attention_weights": (2, 4, 4, 7, 7),
        "cross_attention_weights": (2, 4, 4, 7, 9),
        "hidden_states": (2, 4, 7, 16),
    }
    weights_NBHLS = np.asarray(out.captured["cross_attention_weights"])
    sums_NBHL = np.broadcast_to((TARGET_IDS != 0)[None, :, None], (2, 4, 4, 7))
    np.testing.assert_allclose(weights_NBHLS.sum(-1), sums_NBHL, atol=1e-6)
    other_BLS = (TARGET_IDS[:, :, None] != SOURCE_IDS[:, None]) | (SOURCE_IDS == 0)[:, None]
    assert not (weights_NBHLS * other_BLS[None, :, None]).any()


def test_decode_without_a_source_raises():
    cfg = both()
    model = nnx.merge(graphdef(cfg), random_params(cfg))
    with pytest.raises(ValueError, match="encoder states"):
        model.decode(TARGET)
