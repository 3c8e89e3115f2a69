"""What cannot be read is refused in one line that names it; damage is found before numbers are."""

import json
import shutil
import struct

import jax
import numpy as np
import pytest

from jaxformer.command import BAD_INPUT, guard
from jaxformer.errors import UserError
from jaxformer.interop import from_huggingface
from jaxformer.interop.family import Extra, Special
from jaxformer.interop.files import INDEX, WEIGHTS, write_tensors
from jaxformer.interop.read import FAMILIES
from jaxformer.interop.settings import model_config
from jaxformer.interop.write import write_params
from jaxformer.models import init
from tests.builders import leaves

pytest.importorskip("safetensors", reason="the extra `hf` has safetensors")

SPECIAL = Special(pad=0, bos=1, eos=2, start=1)
CFG = model_config(
    {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 20, "vocab_size": 11, "max_length": 8}
)


@pytest.fixture(scope="module")
def params():
    return init(CFG, jax.random.key(0))


@pytest.fixture(scope="module")
def whole(params, tmp_path_factory):
    """A folder of GPT-2."""
    folder = tmp_path_factory.mktemp("gpt2")
    write(folder, params)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy to break."""
    return shutil.copytree(whole, tmp_path / "broken")


def write(folder, params, limit=2**20, **fields):
    gpt2 = FAMILIES["gpt2"]
    write_tensors(folder, write_params(gpt2, CFG, leaves(params), SPECIAL, "float32"), limit)
    fields = {"model_type": "gpt2"} | gpt2.write(CFG, SPECIAL) | fields
    (folder / "config.json").write_text(json.dumps(fields))


def change(folder, **fields):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(values))


def change_tensors(folder, change):
    from safetensors.numpy import load_file, save_file

    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def refused(folder, capsys):
    """The one line that the command line would print."""
    capsys.readouterr()
    assert guard(lambda: from_huggingface(folder) and 0, False) == BAD_INPUT
    line = capsys.readouterr().err.strip()
    assert len(line.splitlines()) == 1
    return line


def test_whole_files_are_read_back(whole, params):
    cfg, again, tokenizer = from_huggingface(whole)
    assert (cfg.num_layers, tokenizer) == (2, None)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    from_huggingface(whole / WEIGHTS)  # the file itself


def test_shards_are_read_by_their_index(params, tmp_path):
    write(tmp_path, params, limit=3000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 3
    assert not (tmp_path / WEIGHTS).exists()
    jax.tree.map(np.testing.assert_array_equal, from_huggingface(tmp_path)[1], params)


def test_a_missing_shard(params, tmp_path, capsys):
    write(tmp_path, params, limit=3000)
    next(tmp_path.glob("model-00002-*")).unlink()
    assert "model-00002-of" in (line := refused(tmp_path, capsys))
    assert "is missing" in line


def test_a_shard_that_lacks_what_the_index_says(params, tmp_path, capsys):
    write(tmp_path, params, limit=3000)
    first, second = sorted(tmp_path.glob("model-*-of-*.safetensors"))[:2]
    shutil.copy(first, second)
    assert "lacks transformer.h.0.attn" in refused(tmp_path, capsys)


def test_an_index_that_leaves_the_folder(params, tmp_path, capsys):
    write(tmp_path, params, limit=3000)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["transformer.wte.weight"] = "../other.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert "names '../other.safetensors'" in refused(tmp_path, capsys)


@pytest.mark.parametrize("size", [0, 5, 400, -7])
def test_a_truncated_file(folder, capsys, size):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:size])
    assert "model.safetensors: is damaged or no safetensors file" in refused(folder, capsys)


def test_no_weights_or_only_a_pickle(folder, capsys):
    (folder / WEIGHTS).unlink()
    assert "has no model.safetensors" in refused(folder, capsys)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "only pytorch_model.bin" in refused(folder, capsys)


def test_tensors_that_are_missing_or_have_no_place(folder, capsys):
    def rename(tensors):
        tensors["transformer.ln_g.weight"] = tensors.pop("transformer.ln_f.weight")
        return tensors

    change_tensors(folder, rename)
    line = refused(folder, capsys)
    assert "lacks transformer.ln_f.weight; has no place for transformer.ln_g.weight" in line


def test_a_tensor_of_another_shape(folder, capsys):
    name = "transformer.h.1.mlp.c_fc.weight"
    change_tensors(folder, lambda t: t | {name: np.ascontiguousarray(t[name].T)})
    assert f"{name} is [20, 12], the config says [12, 20]" in refused(folder, capsys)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"n_layer": 3}, "lacks transformer.h.2.attn.c_attn.weight"),
        ({"n_layer": 1}, "has no place for transformer.h.1.attn.c_attn.bias"),
        ({"n_embd": 15}, "transformer.wte.weight is [11, 12], the config says [11, 15]"),
        ({"n_head": 5}, "gives model.d_model, which 12 is not divisible by num_heads = 5"),
        ({"vocab_size": 10**30}, "vocab_size: is 1e+30, it takes a whole number below 2^31"),
        ({"n_layer": 10**6}, "config.json: gives 1000000 layers, and there are"),
        ({"n_head": "3"}, "config.json: n_head: is '3', it takes a whole number"),
        ({"model_type": "mamba"}, "model_type: is 'mamba', it is not yet readable"),
        ({"model_type": None}, "model_type: is missing"),
        ({"tie_word_embeddings": False}, "lacks lm_head.weight"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: is true"),
        ({"activation_function": "tanh"}, "activation_function: is 'tanh'"),
    ],
)
def test_config_and_weights_that_do_not_fit(folder, capsys, fields, line):
    change(folder, **fields)
    assert line in refused(folder, capsys)


def test_copies_must_be_equal(folder, capsys):
    change_tensors(folder, lambda t: t | {"lm_head.weight": t["transformer.wte.weight"]})
    from_huggingface(folder)
    change_tensors(folder, lambda t: t | {"lm_head.weight": t["lm_head.weight"] + 1})
    assert "lm_head.weight: differs from transformer.wte.weight" in refused(folder, capsys)


def test_no_config_and_a_damaged_one(folder, capsys):
    (folder / "config.json").write_text("{")
    assert "config.json: cannot be read" in refused(folder, capsys)
    (folder / "config.json").write_text('{"a": ' * 100_000)
    assert "config.json: cannot be read" in refused(folder, capsys)
    (folder / "config.json").unlink()
    assert "has no config.json" in refused(folder, capsys)
    assert "does not exist" in refused(folder / "none", capsys)


def test_names_of_the_bare_model_and_buffers(folder, params, capsys):
    def bare(tensors):
        tensors = {n.removeprefix("transformer."): x for n, x in tensors.items()}
        return tensors | {"h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32)}

    change_tensors(folder, bare)
    change(folder, resid_pdrop=0.25, new_field=1)
    cfg, again, _ = from_huggingface(folder)
    assert cfg.dropout.residual == 0.25
    jax.tree.map(np.testing.assert_array_equal, again, params)
    told = capsys.readouterr().err
    assert "fields not known here were not read: new_field" in told
    assert "not read: h.0.attn.bias" in told


def refuse_fields(family, fields, base):
    from pathlib import Path

    from jaxformer.interop.fields import Fields

    FAMILIES[family].read(Fields(Path("config.json"), base | fields), ())


ROPE = {"max_position_embeddings": 64, "num_attention_heads": 4, "hidden_size": 32}
LLAMA = ROPE | {"num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 11}


@pytest.mark.parametrize(
    ("family", "fields", "line"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act: is 'gelu'"),
        ("llama", {"hidden_act": ["silu"]}, "hidden_act: is ['silu']"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads: is 0"),
        ("qwen3", {"layer_types": 2}, "layer_types: is 2"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type: is"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type: is"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}},
            "rope_parameters.mscale: is 1.0",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: is 0.5",
        ),
        (
            "gemma2",
            {"query_pre_attn_scalar": 144, "head_dim": 128},
            "query_pre_attn_scalar: is 144",
        ),
        ("gemma2", {"use_bidirectional_attention": True, "head_dim": 256}, "use_bidirectional"),
        ("qwen3", {"layer_types": ["full_attention", "chunked"]}, "layer_types: has 'chunked'"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types: names 1 layers of 2"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: is"),
        ("bert", {"is_decoder": True}, "is_decoder: is true"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj: is 'gated-tanh'"),
        ("bart", {"decoder_attention_heads": 2, "encoder_attention_heads": 4}, "decoder_attention"),
        ("bart", {"normalize_before": True}, "normalize_before: is true"),
        (
            "bloom",
            {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm: is true",
        ),
    ],
)
def test_what_a_family_can_say_and_we_cannot(family, fields, line):
    with pytest.raises(UserError, match=r"config\.json") as error:
        refuse_fields(family, fields, LLAMA)
    assert line in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_table_is_the_whole_model_once(family):
    """Any table that forgot or repeated a parameter is a bug, whatever files say."""
    pytest.importorskip("torch", reason="the extra `oracle` has torch")
    from tests.interop.families import CASES

    for kind, fields in CASES[family]:
        head = "cls.predictions.transform.dense.weight", "lm_head.dense.weight"
        names = head if "MaskedLM" in kind else ("final_logits_bias",)
        from pathlib import Path

        from jaxformer.interop.fields import Fields

        changes = FAMILIES[family].read(Fields(Path("x"), fields), names)
        cfg = model_config(changes)
        rows = FAMILIES[family].rows(cfg, Extra(1))
        from jaxformer.models import abstract_params, build

        paths = sorted(path for row in rows for path in row.paths)
        assert paths == sorted(leaves_of(abstract_params(build(cfg))))
        named = [name for row in rows for name in row.names]
        assert len(set(named)) == len(named)


def leaves_of(tree):
    from jaxformer.sharding import path_of

    return [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]


def flat_file(path, header, floats):
    path.write_bytes(struct.pack("<7i", *header) + np.zeros(floats, "<f4").tobytes())


def test_flat_files_that_are_not_whole(tmp_path, capsys):
    path = tmp_path / "a.bin"
    header = (8, 12, 1, 2, 2, 5, 4)
    floats = 5 * 8 + 8 + 4 * 64 + 8 + 3 * 96 + 8 + 2 * 4 * 2
    flat_file(path, header, floats)
    cfg, _, _ = from_huggingface(path)
    assert (cfg.d_ff, cfg.tie_embeddings) == (12, True)
    flat_file(path, header, floats - 1)
    assert f"has {28 + 4 * floats - 4} bytes, its header says {28 + 4 * floats}" in refused(
        path, capsys
    )
    flat_file(path, (0x616B3432, 1, 8, 12, 1, 2, 2), 10)
    assert "is of a later format" in refused(path, capsys)
    path.write_bytes(b"abc")
    assert "has no header" in refused(path, capsys)
