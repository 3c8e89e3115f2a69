"""What a model shows of its inside."""

import numpy as np
import pytest

from jaxformer.models.trunk import CAPTURES
from tests.builders import apply, model_config, random_params

TOKENS = np.random.default_rng(0).integers(0, 40, (4, 6)).astype(np.int32)
SEGMENT_IDS = np.array([[1] * 6, [1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0], [0] * 6], np.int32)


def run(capture, scan_layers=False, **changes):
    cfg = model_config(scan_layers=scan_layers, **changes)
    return apply(cfg, random_params(cfg), TOKENS, SEGMENT_IDS, capture=capture)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_shapes_and_sums(scan_layers):
    out = run(CAPTURES, scan_layers, num_kv_heads=2)
    assert set(out.captured) == set(CAPTURES) - {"cross_attention_weights"}
    weights_NBHLS = np.asarray(out.captured["attention_weights"])
    assert weights_NBHLS.shape == (2, 4, 4, 6, 6)
    assert out.captured["hidden_states"].shape == (2, 4, 6, 16)
    real_BL = SEGMENT_IDS != 0
    sums_NBHL = np.broadcast_to(real_BL[None, :, None], (2, 4, 4, 6))
    np.testing.assert_allclose(weights_NBHLS.sum(-1), sums_NBHL, atol=1e-6)
    same_BLS = (SEGMENT_IDS[:, :, None] == SEGMENT_IDS[:, None]) & real_BL[:, None]
    allowed_BLS = same_BLS & np.tril(np.ones((6, 6), bool))
    assert not (weights_NBHLS * ~allowed_BLS[None, :, None]).any()


def test_hidden_states_are_the_residual_stream_after_each_layer():
    out = run(["hidden_states"], norm_placement="post")
    np.testing.assert_array_equal(out.captured["hidden_states"][-1], out.hidden)
    one = run(["hidden_states"], norm_placement="post", num_layers=1)
    np.testing.assert_array_equal(out.captured["hidden_states"][0], one.hidden)


def test_capturing_changes_no_number_and_nothing_is_captured_unasked():
    plain = run(())
    assert plain.captured == {}
    assert plain.losses == {}
    assert plain.cache is None
    np.testing.assert_array_equal(run(CAPTURES).logits, plain.logits)


def test_an_unknown_name_raises():
    with pytest.raises(ValueError, match=r"attention_wights.*attention_weights"):
        run(["attention_wights"])


def test_logits_are_the_readout_of_the_hidden_states():
    cfg = model_config(head_bias=True)
    params = random_params(cfg)
    out, table_VD = apply(cfg, params, TOKENS), np.asarray(params["embedding"]["table"])
    logits = np.asarray(out.hidden) @ table_VD.T + np.asarray(params["head"]["bias"])
    np.testing.assert_allclose(out.logits, logits, atol=1e-5)
