"""The encoder: bidirectional, its heads, against the oracle and by property."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer.nn.dropout import RowKey
from tests import oracle
from tests.builders import PAIRS, apply, grid_config, leaves, model_config, random_params, row_id

TOKENS = np.random.default_rng(0).integers(0, 40, (4, 12)).astype(np.int32)
SEGMENT_IDS = np.array(
    [
        [1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5],
        [0, 1, 1, 0, 1, 2, 2, 0, 0, 2, 2, 2],
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ],
    np.int32,
)
CLASSES = {"head.num_classes": 3, "logit_softcap": 0.0}
CLASSES |= {"head_bias": False, "scale_logits": False}
HEADS = {
    "words": {},
    "token": {"head.kind": "token"} | CLASSES,
    "first": {"head.kind": "sequence"} | CLASSES,
    "mean": {"head.kind": "sequence", "head.pooling": "mean"} | CLASSES,
}
BERT = {"norm_placement": "post", "embedding_norm": True, "activation": "gelu_exact"}
BERT |= {"head.transform": True, "head_bias": True, "norm_epsilon": 1e-12}


def encoder(**changes):
    return model_config(architecture="encoder", **changes)


def compare(cfg):
    params = random_params(cfg)
    unrolled = random_params(dataclasses.replace(cfg, scan_layers=False))
    ids_BL = SEGMENT_IDS
    if cfg.head.kind == "sequence":  # one document a row, padding on the right
        ids_BL = (np.arange(12) < np.array([[12], [7], [1], [4]])).astype(np.int32)
    logits = np.asarray(apply(cfg, params, TOKENS, ids_BL).logits)
    assert logits.dtype == np.float32
    for b in range(4):
        expected = oracle.row_logits(cfg, unrolled, TOKENS[b], ids_BL[b])
        error = np.abs(logits[b] - expected)
        error = error if cfg.head.kind == "sequence" else error[ids_BL[b] != 0]
        assert error.max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("number", range(0, len(PAIRS), 3), ids=lambda n: row_id(PAIRS[n]))
def test_logits_equal_the_oracle(number):
    """Every third row of the decoder's cover, the heads in turn."""
    head = list(HEADS.values())[number // 3 % len(HEADS)]
    compare(grid_config(PAIRS[number], architecture="encoder", **head))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_heads_equal_the_oracle(name, placement):
    compare(encoder(norm_placement=placement, **HEADS[name]))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_bert_equals_the_oracle(scan_layers):
    compare(encoder(scan_layers=scan_layers, **BERT))


def test_parameters_of_heads():
    def head(**changes):
        found = leaves(random_params(encoder(**changes)))
        return {name[5:]: x.shape for name, x in found.items() if name.startswith("head/")}

    transform = {"transform/kernel": (16, 16), "transform/bias": (16,)}
    norm = {"norm/scale": (16,), "norm/bias": (16,)}
    assert head(**BERT) == {"bias": (40,)} | transform | norm
    classifier = {"classifier/kernel": (16, 3), "classifier/bias": (3,)}
    assert head(**HEADS["token"]) == classifier
    pooler = {"pooler/kernel": (16, 16), "pooler/bias": (16,)}
    assert head(**HEADS["mean"]) == classifier | pooler


def test_every_token_sees_its_whole_document_and_nothing_else():
    cfg = encoder(**{"position.kind": "sinusoidal"})
    params = random_params(cfg)
    ids_BL = np.array([[1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 1, 1]], np.int32)
    tokens_BL = np.arange(12, dtype=np.int32).reshape(2, 6)  # each token stands at one place
    weights_D = np.random.default_rng(1).normal(size=cfg.d_model)

    @jax.jit
    @jax.grad
    def gradient_at(table_VD, place):
        hidden_BLD = apply(cfg, params | {"embedding": {"table": table_VD}}, tokens_BL, ids_BL)
        return (hidden_BLD.hidden[:, place] * weights_D[None]).sum()

    for place in range(6):
        gradient_VD = np.asarray(gradient_at(params["embedding"]["table"], place))
        depends_BL = (gradient_VD[:12] != 0).any(1).reshape(2, 6)
        same_BL = (ids_BL == ids_BL[:, place : place + 1]) & (ids_BL != 0)
        same_BL |= (ids_BL[:, place : place + 1] == 0) & (np.arange(6) == place)  # padding: itself
        np.testing.assert_array_equal(depends_BL, same_BL)


@pytest.mark.parametrize("name", HEADS)
def test_padding_changes_nothing(name):
    cfg = encoder(max_length=12, **HEADS[name])
    params, tokens_BP = random_params(cfg), TOKENS[:, :6]
    plain = np.asarray(apply(cfg, params, tokens_BP).logits)
    for fill in (0, 39):
        for before in (0,) if cfg.head.kind == "sequence" else (0, 4):
            tokens_BL, ids_BL = np.full((4, 12), fill, np.int32), np.zeros((4, 12), np.int32)
            tokens_BL[:, before : before + 6], ids_BL[:, before : before + 6] = tokens_BP, 1
            logits = np.asarray(apply(cfg, params, tokens_BL, ids_BL).logits)
            logits = logits if logits.ndim == 2 else logits[:, before : before + 6]
            np.testing.assert_allclose(logits, plain, atol=2e-5)


@pytest.mark.parametrize("name", HEADS)
def test_dropout_draws_by_global_row(name):
    cfg = encoder(**HEADS[name], **{"dropout.residual": 0.3, "dropout.embedding": 0.2})
    params, key = random_params(cfg), jax.random.key(3)
    together = np.asarray(apply(cfg, params, TOKENS, key=key).logits)
    assert np.abs(together - apply(cfg, params, TOKENS).logits).max() > 1e-3
    rows_B = np.array([3, 1, 0, 2], np.int32)
    mixed = apply(cfg, params, TOKENS[rows_B], key=RowKey(key, jax.numpy.asarray(rows_B)))
    np.testing.assert_allclose(mixed.logits, together[rows_B], atol=1e-5)


def test_an_encoder_takes_no_cache():
    cfg = encoder()
    with pytest.raises(ValueError, match="no cache"):
        apply(cfg, random_params(cfg), TOKENS, cache=object())
