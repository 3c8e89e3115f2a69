"""The encoder-decoder against torch.nn.Transformer, an implementation by others (extra `oracle`).

Theirs has a norm after each last layer, no embeddings and no head; its masks are True where
nothing may be seen, the inverse of ours.
"""

import numpy as np
import pytest
from flax import nnx

from tests.builders import graphdef, model_config, random_params

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `oracle`")

D, HEADS, B, S, L = 16, 4, 3, 7, 5
SOURCE, TARGET = (np.random.default_rng(n).integers(0, 40, (B, n)).astype(np.int32) for n in (S, L))
SOURCE_LENGTHS, TARGET_LENGTHS = np.array([7, 4, 1]), np.array([3, 5, 1])
ATTENTIONS = {
    "encoder": {"attention": "self_attn"},
    "decoder": {"attention": "self_attn", "cross_attention": "multihead_attn"},
}


def tensor(x, transpose=False):
    return torch.tensor(np.asarray(x).T if transpose else np.asarray(x))


def state_of(params):
    """Our parameters under torch's names; its linear weights are [out, in], q, k, v in one."""
    state = {}
    for side, attentions in ATTENTIONS.items():
        for i, layer in params[side]["layers"].items():
            name = f"{side}.layers.{i}"
            for ours, theirs in attentions.items():
                part = layer[ours]
                names = ("query", "key", "value")
                kernels = [np.asarray(part[n]["kernel"]).T for n in names]
                biases = [np.asarray(part[n]["bias"]) for n in names]
                state[f"{name}.{theirs}.in_proj_weight"] = tensor(np.concatenate(kernels))
                state[f"{name}.{theirs}.in_proj_bias"] = tensor(np.concatenate(biases))
                state[f"{name}.{theirs}.out_proj.weight"] = tensor(part["output"]["kernel"], True)
                state[f"{name}.{theirs}.out_proj.bias"] = tensor(part["output"]["bias"])
            for ours, theirs in (("up", "linear1"), ("down", "linear2")):
                part = layer["feed_forward"][ours]
                state[f"{name}.{theirs}.weight"] = tensor(part["kernel"], True)
                state[f"{name}.{theirs}.bias"] = tensor(part["bias"])
            for n, ours in enumerate([*attentions, "feed_forward"], 1):
                state[f"{name}.norm{n}.weight"] = tensor(layer[f"{ours}_norm"]["scale"])
                state[f"{name}.norm{n}.bias"] = tensor(layer[f"{ours}_norm"]["bias"])
        state[f"{side}.norm.weight"] = tensor(params[side]["final_norm"]["scale"])
        state[f"{side}.norm.bias"] = tensor(params[side]["final_norm"]["bias"])
    return state


@pytest.mark.parametrize("activation", ["relu", "gelu_exact"])
@pytest.mark.parametrize("placement", ["pre", "post"])
# torch warns that its fast path is off for Pre-LN and that nested tensors are a prototype.
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_hidden_states_equal_torchs(placement, activation):
    cfg = model_config(
        architecture="encoder_decoder",
        num_encoder_layers=3,
        d_model=D,
        num_heads=HEADS,
        norm_placement=placement,
        final_norm="true",
        activation=activation,
        **{"position.kind": "none"},
    )
    params = random_params(cfg)
    source_ids_BS = (np.arange(S) < SOURCE_LENGTHS[:, None]).astype(np.int32)
    target_ids_BL = (np.arange(L) < TARGET_LENGTHS[:, None]).astype(np.int32)
    model = nnx.merge(graphdef(cfg), params)
    ours = model(SOURCE, TARGET, source_ids_BS, target_ids_BL)

    theirs = torch.nn.Transformer(
        d_model=D,
        nhead=HEADS,
        num_encoder_layers=3,
        num_decoder_layers=2,
        dim_feedforward=cfg.d_ff,
        dropout=0.0,
        activation=activation.removesuffix("_exact"),
        layer_norm_eps=cfg.norm_epsilon,
        batch_first=True,
        norm_first=placement == "pre",
    ).eval()
    theirs.load_state_dict(state_of(params), strict=True)
    table_VD = np.asarray(params["embedding"]["table"])
    hidden_source, hidden_target = tensor(source_ids_BS == 0), tensor(target_ids_BL == 0)
    with torch.no_grad():
        expected_BLD = theirs(
            tensor(table_VD[SOURCE]),
            tensor(table_VD[TARGET]),
            tgt_mask=tensor(~np.tri(L, dtype=bool)),
            src_key_padding_mask=hidden_source,
            tgt_key_padding_mask=hidden_target,
            memory_key_padding_mask=hidden_source,
        ).numpy()
    real_BL = target_ids_BL != 0
    np.testing.assert_allclose(np.asarray(ours.hidden)[real_BL], expected_BLD[real_BL], atol=1e-5)


def test_parameters_of_the_defaults():
    """Its base stack with both final norms; tests/models/test_presets.py counts ours."""
    with torch.device("meta"):
        parameters = torch.nn.Transformer(batch_first=True).parameters()
        assert sum(parameter.numel() for parameter in parameters) == 44_140_544


def test_an_lstm_equals_torchs():
    """Gates in the same order; torch has a second bias, here 0."""
    cfg = model_config(architecture="lstm", d_model=D, d_ff=0)
    params = random_params(cfg)
    theirs = torch.nn.LSTM(D, D, num_layers=2, batch_first=True)
    state = {}
    for i, layer in params["layers"].items():
        state[f"weight_ih_l{i}"] = tensor(layer["input"]["kernel"], True)
        state[f"weight_hh_l{i}"] = tensor(layer["recurrent"]["kernel"], True)
        state[f"bias_ih_l{i}"] = tensor(layer["bias"])
        state[f"bias_hh_l{i}"] = torch.zeros(4 * D)
    theirs.load_state_dict(state)
    with torch.no_grad():
        expected, _ = theirs(tensor(params["embedding"]["table"])[TARGET])
    found = nnx.merge(graphdef(cfg), params)(TARGET).hidden
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)
