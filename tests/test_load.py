"""A run read back onto a mesh: the same parameters, text, losses and beams as on one device."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import MeshConfig
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import EVALUATORS, evaluate_batches
from jaxformer.generation import Greedy, Temperature, beam_search, generate
from jaxformer.generation.inputs import prefill, prepare
from jaxformer.run import Run, cast, load
from jaxformer.sharding import mesh_of, path_of, using
from tests.builders import graphdef, leaves, random_params
from tests.training import tiny

WORDS = word_tokenizer("abcdefgh")
MESH = "fsdp:2,tensor:2,context:2"
ARCHITECTURES = {
    "decoder": {"model__position__kind": "rope", "model__num_kv_heads": 1},
    "encoder_decoder": tiny.SEQ2SEQ | {"model__position__kind": "t5", "model__scan_layers": True},
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def workdir(request, tmp_path_factory):
    """A run with random parameters."""
    folder = tmp_path_factory.mktemp(request.param)
    cfg = tiny.config(
        **ARCHITECTURES[request.param], model__num_heads=4, mesh__fsdp=4, mesh__data=2
    )
    assert WORDS.vocab_size == cfg.model.vocab_size == 11
    cfg.save(folder / "config.json")
    WORDS.save(folder / "tokenizer.json")
    saved = Checkpoints(folder)
    meta = {"config": cfg.to_dict(), "tokenizer": WORDS.fingerprint, "data": ""}
    saved.save(3, {"params": random_params(cfg.model)}, meta)
    saved.wait()
    saved.close()
    return folder


def placed(run):
    """Parameters, which vocabularies may stand padded in."""
    return nnx.to_pure_dict(nnx.state(run.model, nnx.Param))


def test_a_run_on_a_mesh_does_what_it_does_on_one_device(workdir, capfd):
    alone, spread = load(workdir), load(workdir, 3, MESH)
    assert mesh_of(placed(alone)) is None
    mesh = mesh_of(placed(spread))
    assert mesh is not None
    assert dict(mesh.shape) == {"data": 1, "fsdp": 2, "expert": 1, "context": 2, "tensor": 2}
    for (keys, one), cut in zip(
        jax.tree_util.tree_leaves_with_path(placed(alone)),
        jax.tree.leaves(placed(spread)),
        strict=True,
    ):
        kept = np.asarray(cut)[tuple(map(slice, one.shape))]
        np.testing.assert_array_equal(kept, one)
        if path_of(keys).endswith(("kernel", "embedding/table")):
            assert cut.addressable_shards[0].data.nbytes * 4 == cut.nbytes
    both = alone.config.model.architecture == "encoder_decoder"
    prompts = {} if both else {"prompts_BP": [[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]}
    prompts |= {} if both else {"lengths_B": [4, 2, 1]}
    prompts = {name: np.array(rows) for name, rows in prompts.items()}
    if both:
        prompts["source_BS"] = np.array([[3, 4, 5], [6, 7, 0], [8, 9, 3]])
        prompts["source_segment_ids"] = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    for way in (
        {"sampler": Temperature(2.0), "key": jax.random.key(5)},
        {"beam_size": 3, "num_return": 2},
    ):
        decode = generate if "sampler" in way else beam_search
        one, cut = (
            decode(run.model, **prompts, **way, max_new_tokens=9, eos_id=-1)
            for run in (alone, spread)
        )
        tokens = [getattr(x, "tokens", None) if "sampler" in way else x.tokens_BNT
                  for x in (one, cut)]  # fmt: skip
        np.testing.assert_array_equal(*tokens)
        scores = [x.logprobs if "sampler" in way else x.scores_BN for x in (one, cut)]
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)
    if not both:
        evaluators = EVALUATORS["perplexity"], EVALUATORS["exact_match"]
        one, cut = (
            evaluate_batches(
                evaluators,
                nnx.graphdef(run.model),
                placed(run),
                evaluation_batches(tiny.Rows(11), 5),  # of no mesh's size
            )
            for run in (alone, spread)
        )
        assert one["loss"].weight == cut["loss"].weight
        assert cut["loss"].sum == pytest.approx(one["loss"].sum, rel=1e-5)
        assert (one["accuracy"], one["exact_match"]) == (cut["accuracy"], cut["exact_match"])
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ("fsdp:3", "mesh.fsdp: 3 does not divide the 8 devices"),
        ("tensor:8", "mesh.tensor: 8 does not divide model.num_heads = 4"),
        (MeshConfig(1, 1, 2), "data × fsdp × tensor = 1 × 1 × 2 but there are 8 devices"),
        ("pod", "--mesh: has 'pod'"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(workdir, mesh, words):
    with pytest.raises(UserError, match=words):
        load(workdir, mesh=mesh)


def test_the_mesh_of_the_run_itself(workdir):
    mesh = mesh_of(placed(load(workdir, mesh="run")))
    assert mesh is not None
    assert (mesh.shape["data"], mesh.shape["fsdp"]) == (2, 4)


def test_half_precision_by_switch(workdir):
    """Kernels and tables are stored so, on a mesh too; what is small, and the logits, are not."""
    full, half = load(workdir), load(workdir, dtype="bfloat16")
    assert (full.config.compute_dtype, half.config.compute_dtype) == ("float32", "bfloat16")
    for (keys, x), y in zip(
        jax.tree_util.tree_leaves_with_path(placed(half)),
        jax.tree.leaves(placed(full)),
        strict=True,
    ):
        path = path_of(keys)
        wide = "position/" in path or path.endswith(("bias", "scale", "sink"))
        assert x.dtype == ("float32" if wide else "bfloat16"), path
        assert y.dtype == "float32"
        if not wide:
            assert x.nbytes * 2 == y.nbytes
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y).astype(x.dtype))
    both = full.config.model.architecture == "encoder_decoder"
    tokens = np.array([[3, 4, 5, 6, 7, 8]])
    inputs = (tokens, tokens) if both else (tokens,)
    spread = load(workdir, 3, MESH, dtype="bfloat16")
    wanted = jax.jit(lambda: full.model(*inputs).logits)()
    scale = np.abs(np.asarray(wanted)).max()
    for run in (half, spread):
        with using(mesh_of(placed(run))):
            logits = jax.jit(lambda run=run: run.model(*inputs).logits)()
        assert logits.dtype == "float32"
        assert 1e-6 < np.abs(np.asarray(logits) - np.asarray(wanted)).max() / scale < 0.05
    prompts = {"source_BS": tokens} if both else {"prompts_BP": tokens, "lengths_B": [6]}
    ways = {"max_new_tokens": 4, "eos_id": -1}
    greedy = {"sampler": Greedy(), "key": jax.random.key(0)}
    one, cut, wide = (
        generate(run.model, **prompts, **ways, **greedy) for run in (half, spread, full)
    )
    np.testing.assert_array_equal(one.tokens, cut.tokens)
    np.testing.assert_allclose(one.logprobs, wide.logprobs, atol=0.05 * scale)


@pytest.mark.parametrize(("device", "ratio"), [("tpu", 2), ("gpu", 2), ("cpu", 1)])
def test_a_cache_in_half_precision_takes_half_the_bytes(workdir, monkeypatch, device, ratio):
    """Keys and values, of a source too, but on CPUs; places of tokens stay whole numbers."""
    monkeypatch.setattr("jaxformer.nn.platform.platform", lambda: device)
    kinds = {}
    for dtype in ("float32", "bfloat16"):
        model = load(workdir, dtype=dtype).model
        tokens = np.array([[3, 4, 5]])
        both = model.config.architecture == "encoder_decoder"
        inputs = prepare(
            model,
            None if both else tokens,
            None if both else np.array([3]),
            source_BS=tokens if both else None,
            source_segment_ids=None,
            max_new_tokens=4,
            bos_id=1,
            eos_id=2,
            rows_B=None,
        )
        cache = jax.eval_shape(lambda model=model, inputs=inputs: prefill(model, inputs, 8)[1])
        arrays = jax.tree.leaves((cache.layers, cache.source_layers))
        assert {x.dtype for x in arrays} == {np.dtype("float32" if device == "cpu" else dtype)}
        kinds[dtype] = sum(x.size * x.dtype.itemsize for x in arrays)
    assert kinds["bfloat16"] * ratio == kinds["float32"]


def test_another_type_is_refused(workdir):
    with pytest.raises(UserError, match="dtype: is 'float16', choose from float32, bfloat16"):
        load(workdir, dtype="float16")


def test_a_router_keeps_its_type():
    """Near ties would send tokens to other experts: docs/moe.md."""
    cfg = tiny.config(model__moe__num_experts=2)
    model = nnx.merge(graphdef(cfg.model), random_params(cfg.model))
    half = cast(Run(model, word_tokenizer(["a"]), cfg, 0, ""), "bfloat16")
    types = {path: x.dtype for path, x in leaves(nnx.to_pure_dict(nnx.state(half.model))).items()}
    layer = "layers/0/feed_forward"
    assert types[f"{layer}/router/kernel"] == "float32"
    assert types[f"{layer}/experts/up/kernel"] == "bfloat16"
