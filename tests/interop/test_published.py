"""A folder as a run: evaluated by its name, and what another run starts from."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from configs import banking77_minilm
from jaxformer import load
from jaxformer.config import MeshConfig, RunConfig
from jaxformer.data import open_data
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.interop import published, to_huggingface
from jaxformer.interop.settings import model_config, run_config
from jaxformer.models import init
from jaxformer.run import Run
from jaxformer.training.loop import train
from tests.builders import graphdef, leaves
from tests.test_cli import commands
from tests.training import tiny

pytest.importorskip("safetensors", reason="the extra `hf` has safetensors")


TOKENIZER = word_tokenizer([f"w{i}" for i in range(tiny.VOCAB - 3)])


def as_run(model, params, tokenizer):
    cfg = run_config(model, add_bos=True, add_eos=True)
    return Run(nnx.merge(graphdef(model), params), tokenizer, cfg, 0, "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model of tests/training as GPT-2, other numbers than a run of it starts with."""
    model = tiny.config().model
    path = tmp_path_factory.mktemp("published") / "gpt2"
    to_huggingface(as_run(model, init(model, jax.random.key(9)), TOKENIZER), path)
    return path


def test_load_reads_a_folder_as_a_run(folder):
    run = load(f"hf:{folder}")
    theirs = init(tiny.config().model, jax.random.key(9))
    found = nnx.to_pure_dict(nnx.state(run.model, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, found, theirs)
    assert run.config.objective.kind == "causal_lm"
    assert run.config.data.add_bos
    assert run.tokenizer.fingerprint
    with pytest.raises(UserError, match="step: is 3"):
        load(f"hf:{folder}", 3)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("scanned", [False, True])
def test_a_run_starts_from_a_folder(folder, tmp_path, capfd, scanned, devices):
    changes = {"train__init_from": f"hf:{folder}", "train__init_paths": ("embedding/*", "layers/*")}
    changes |= {"train__num_steps": 1, "train__freeze": ("embedding/*",), "train__check_every": 0}
    cfg = tiny.config(**changes, model__scan_layers=scanned, schedule__peak_value=1e-12)
    mesh = MeshConfig(data=1, fsdp=1) if devices == 1 else MeshConfig(data=2, fsdp=2, tensor=2)
    train(dataclasses.replace(cfg, mesh=mesh), tiny.data(), tmp_path)
    said = capfd.readouterr().err
    assert f"parameters are those of hf:{folder}: embedding/table" in said
    assert "computes other things" not in said
    theirs = leaves(init(tiny.config().model, jax.random.key(9)))
    own = leaves(init(cfg.model, jax.random.key(cfg.seed)))
    from jaxformer.checkpoint import Checkpoints

    arrays = Checkpoints(tmp_path, read_only=True).arrays(1)
    for path, mine in own.items():
        found = arrays[f"params/{path}"]
        if path.startswith("layers/") and scanned:
            wanted = theirs[f"layers/0/{path.removeprefix('layers/')}"][None]
        else:
            wanted = theirs[path] if path.startswith(("embedding/", "layers/")) else mine
        np.testing.assert_allclose(found, wanted, atol=1e-9, err_msg=path)


def test_another_shape_or_function_is_told(folder, tmp_path, capfd):
    taken = {"train__init_from": f"hf:{folder}", "train__init_paths": ("layers/*",)}
    with pytest.raises(UserError, match=r"is of another model: layers/0/feed_forward/down/kernel"):
        train(tiny.config(**taken, model__d_ff=12), tiny.data(), tmp_path / "a")
    with pytest.raises(UserError, match=r"layers/1/attention.* is absent"):
        train(tiny.config(**taken, model__num_layers=2), tiny.data(), tmp_path / "b")
    cfg = tiny.config(**taken, model__activation="relu", model__window=3, train__num_steps=1)
    train(cfg, tiny.data(), tmp_path / "c")
    said = capfd.readouterr().err
    assert "computes other things: model.activation is relu, there gelu" in said
    assert "model.window is [3], there [0]" in said


def test_layers_beyond_the_model_are_not_left_out_in_silence(tmp_path):
    deep = tiny.config(model__num_layers=3).model
    to_huggingface(as_run(deep, init(deep, jax.random.key(1)), TOKENIZER), tmp_path / "deep")
    taken = {"train__init_from": f"hf:{tmp_path / 'deep'}", "train__init_paths": ("*",)}
    with pytest.raises(UserError, match=r"has 3 layers, layers/2/.* among them, and this model 2"):
        train(tiny.config(**taken, model__num_layers=2), tiny.data(), tmp_path / "run")


def test_a_run_on_a_mesh_is_written_without_its_padding(folder, tmp_path):
    run = load(f"hf:{folder}", mesh="tensor:2,data:1,fsdp:4")
    assert run.config.model.vocab_size % 2
    to_huggingface(run, tmp_path / "again")
    found, wanted = (
        nnx.to_pure_dict(nnx.state(load(f"hf:{path}").model, nnx.Param))
        for path in (tmp_path / "again", folder)
    )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_the_config_of_banking77_gives_an_encoder_another_head(tmp_path, capfd):
    """A folder with a head of masked words: its body, a new head on the mean, its tokenizer."""
    body = {"num_layers": 1, "d_model": 8, "num_heads": 2, "vocab_size": tiny.VOCAB}
    body |= {"architecture": "encoder", "max_length": 32, "activation": "gelu_exact"}
    body |= {"norm_placement": "post", "embedding_norm": True, "initializer": "bert"}
    model = model_config(body | {"head.transform": True, "head_bias": True})
    params = init(model, jax.random.key(3))
    assert to_huggingface(as_run(model, params, TOKENIZER), tmp_path / "bert") == "bert"
    words = [f"w{i % 5} w{i % 3},{'ab'[i % 2]}\n" for i in range(20)]
    (tmp_path / "a.csv").write_text("text,category\n" + "".join(words))
    made = banking77_minilm.get_config(str(tmp_path / "bert"))
    made.data.path = str(tmp_path / "a.csv")
    made.train.update(num_steps=1, batch_size=4, freeze=("embedding/*",))
    made.schedule.warmup_steps, made.mesh.data = 0, 1
    cfg = RunConfig.from_config_dict(made)
    data = open_data(cfg, tmp_path / "run")
    sizes = {"vocab_size": tiny.VOCAB, "steps_per_epoch": 4, "num_classes": 2}
    train(cfg.resolve(**sizes), data, tmp_path / "run")
    said = capfd.readouterr().err
    assert f"20 of 24 parameters are those of hf:{tmp_path / 'bert'}: embedding/table" in said
    run = load(str(tmp_path / "run"))
    assert (run.config.model.head.kind, run.config.model.head.pooling) == ("sequence", "mean")
    found = leaves(nnx.to_pure_dict(nnx.state(run.model, nnx.Param)))
    np.testing.assert_array_equal(found["embedding/table"], leaves(params)["embedding/table"])


def test_how_a_model_is_computed_is_no_part_of_what_is_written(folder, tmp_path):
    run = load(f"hf:{folder}")
    model = dataclasses.replace(run.config.model, attention_kernel="blockwise", logit_chunk=4)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, model=model))
    assert to_huggingface(run, tmp_path / "same") == "gpt2"
    with pytest.raises(UserError, match="dtype: is 'keep'"):
        to_huggingface(run, tmp_path / "other", dtype="keep")


def test_what_no_family_says_is_refused_by_field(folder, tmp_path):
    run = load(f"hf:{folder}")
    odd = model_config(
        {"num_layers": 1, "d_model": 8, "num_heads": 2, "vocab_size": 11, "attention_sink": True}
    )
    other = as_run(odd, init(odd, jax.random.key(0)), run.tokenizer)
    with pytest.raises(UserError, match=r"model.attention_sink: is True, which gpt2, the nearest"):
        to_huggingface(other, tmp_path / "a")
    with pytest.raises(UserError, match=r"cannot be written as llama .*hidden_act: is .gelu"):
        to_huggingface(run, tmp_path / "a", family="llama")
    with pytest.raises(UserError, match=r"family: is 'opt'"):
        to_huggingface(run, tmp_path / "a", family="opt")
    (tmp_path / "config.json").write_text(json.dumps({"seed": 1}))
    with pytest.raises(UserError, match="holds a run"):
        to_huggingface(run, tmp_path)
    assert not (tmp_path / "a").exists()


def test_an_export_leaves_what_it_did_not_write(folder, tmp_path):
    """Other weights, a run with and without its config.json; a model is replaced, shards too."""
    run = load(f"hf:{folder}")
    others, lost = tmp_path / "others", tmp_path / "lost"
    others.mkdir()
    (others / "mine.safetensors").write_text("precious")
    (lost / "checkpoints").mkdir(parents=True)
    for path, words in ((others, "holds mine.safetensors and no config"), (lost, "holds a run")):
        before = sorted(path.rglob("*"))
        with pytest.raises(UserError, match=words):
            to_huggingface(run, path)
        assert sorted(path.rglob("*")) == before
    to_huggingface(run, tmp_path / "again")
    (tmp_path / "again" / "adapter.safetensors").write_text("precious")
    (tmp_path / "again" / "model-00001-of-00002.safetensors").write_text("old")
    to_huggingface(run, tmp_path / "again")
    names = {path.name for path in (tmp_path / "again").glob("*.safetensors*")}
    assert names == {"model.safetensors", "adapter.safetensors"}


def test_an_end_outside_the_vocabulary_is_told_by_its_folder(folder, tmp_path):
    odd = shutil.copytree(folder, tmp_path / "odd")
    (odd / "tokenizer_config.json").unlink()
    config = json.loads((odd / "config.json").read_text()) | {"eos_token_id": 1000}
    (odd / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"odd: config.json and tokenizer: number the end .* 1000"):
        load(f"hf:{odd}")


def test_a_prefix_language_model_is_no_familys(folder, tmp_path):
    run = load(f"hf:{folder}")
    objective = dataclasses.replace(run.config.objective, kind="prefix_lm")
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, objective=objective))
    with pytest.raises(UserError, match=r"objective.kind: is prefix_lm"):
        to_huggingface(run, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_scanned_layers_are_written_one_by_one(tmp_path):
    from jaxformer.interop import from_huggingface

    plain = model_config(
        {"num_layers": 3, "d_model": 8, "num_heads": 2, "vocab_size": 11, "max_length": 8}
    )
    scanned = dataclasses.replace(plain, scan_layers=True)
    run = as_run(scanned, init(scanned, jax.random.key(4)), TOKENIZER)
    to_huggingface(run, tmp_path / "a")
    again = leaves(from_huggingface(tmp_path / "a")[1])
    wanted = leaves(init(plain, jax.random.key(4)))
    assert again.keys() == wanted.keys()
    for path, x in wanted.items():
        np.testing.assert_array_equal(again[path], x, err_msg=path)


@pytest.mark.parametrize("dtype", ["keep", "bfloat16", "float32"])
def test_types_and_a_mesh(folder, tmp_path, dtype):
    from jaxformer.config import MeshConfig
    from jaxformer.interop import from_huggingface
    from jaxformer.sharding import make_mesh

    mesh = make_mesh(MeshConfig(data=1, fsdp=8))
    _, params, _ = from_huggingface(folder, mesh=mesh, dtype=dtype)
    _, wanted, _ = from_huggingface(folder)
    kernel = params["layers"][0]["attention"]["query"]["kernel"]
    assert kernel.dtype == ("bfloat16" if dtype == "bfloat16" else "float32")
    assert kernel.addressable_shards[0].data.shape == (1, 8)
    expected = np.asarray(wanted["layers"][0]["attention"]["query"]["kernel"]).astype(kernel.dtype)
    np.testing.assert_array_equal(np.asarray(kernel), expected)
    with pytest.raises(UserError, match="dtype: is 'int8'"):
        from_huggingface(folder, dtype="int8")


def test_half_precision_is_kept(folder, tmp_path):
    from jaxformer.interop import from_huggingface

    run = load(f"hf:{folder}")
    to_huggingface(run, tmp_path / "a", dtype="bfloat16")
    kept = leaves(from_huggingface(tmp_path / "a", dtype="keep")[1])
    wide = leaves(from_huggingface(tmp_path / "a")[1])
    exact = leaves(nnx.to_pure_dict(nnx.state(run.model, nnx.Param)))
    for path, x in exact.items():
        assert kept[path].dtype == "bfloat16"
        np.testing.assert_array_equal(kept[path], x.astype(kept[path].dtype))
        np.testing.assert_array_equal(wide[path], kept[path].astype(np.float32))


def test_eval_of_a_folder(folder, tmp_path):
    """The command line: text on stdout, own files scored, nothing written to the folder."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    words = load(f"hf:{copy}").tokenizer
    one, two = words.token(5), words.token(6)
    (tmp_path / "text.txt").write_text(f"{one} {two} " * 6)
    pairs = {"sentence_good": f"{one} {two}", "sentence_bad": f"{two} {two} {one}"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pairs))
    command, out = ["eval.py", f"--workdir=hf:{copy}"], [f"--out={tmp_path / 'out'}"]
    perplexity = [*command, f"--perplexity={tmp_path / 'text.txt'}"]
    cases = [
        [*command, f"--prompt={one}", "--max_new_tokens=3", "--stream"],
        command,
        perplexity,
        [*perplexity, *out],
        [*command, f"--pairs={tmp_path / 'pairs.jsonl'}", *out],
    ]
    results = commands(cases)
    assert [status for status, _, _ in results] == [0, 2, 2, 0, 0], results
    assert results[0][1].startswith(one)
    assert results[1][2].startswith(f"error: --workdir: is hf:{copy}, which has no data")
    assert results[2][2].startswith(f"error: --out: is missing: hf:{copy} is read only")
    told = json.loads((tmp_path / "out" / "perplexity.json").read_text())
    assert (told["window"], told["start"]) == (tiny.LENGTH, "<s>")
    assert told["results"][0]["weight"] == 12
    assert json.loads((tmp_path / "out" / "pairs.json").read_text())["results"][0]["weight"] == 1
    assert sorted(p.name for p in copy.iterdir()) == sorted(p.name for p in folder.iterdir())


def test_fields_that_the_other_model_has_not_are_named_too(capsys):
    dense = tiny.config().model
    experts = tiny.config(model__moe__num_experts=4).model
    published._compare("FOLDER", experts, dense)
    assert "model.moe.num_experts is 4, there absent" in capsys.readouterr().err
