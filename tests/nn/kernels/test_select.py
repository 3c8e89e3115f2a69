"""Which kernel runs."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import kernels
from jaxformer.nn.kernels.select import DOES, Case, check_kernel, choose
from jaxformer.nn.platform import platform
from tests.builders import apply, model_config, random_params
from tests.nn.kernels.cases import CASES, RAGGED
from tests.nn.kernels.cases import Case as Call
from tests.training import tiny

GPU = Case("gpu", 1024, 1024, 64, "bfloat16", True, False, True, frozenset())
TPU = dataclasses.replace(GPU, platform="tpu")
CPU = dataclasses.replace(GPU, platform="cpu", dtype="float32")


def of(case, *asks, **changes):
    return dataclasses.replace(case, asks=frozenset(asks), **changes)


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        (GPU, "cudnn"),
        (of(GPU, dtype="float32"), "reference"),
        (of(GPU, dtype="float32", length=8192), "blockwise"),
        (of(GPU, length=64), "cudnn"),
        (of(GPU, context=2), "reference"),
        (of(GPU, context=2, length=8192), "blockwise"),
        (TPU, "splash"),
        (of(TPU, length=256), "reference"),
        (of(TPU, context=8), "splash"),
        (of(TPU, context=16), "reference"),
        (of(TPU, length=1000, keys=1000), "reference"),
        (of(TPU, "softcap", "sink", window=True), "splash"),
        (of(TPU, "bias", length=8192), "blockwise"),
        (CPU, "blockwise"),
        (of(CPU, length=64), "reference"),
        (of(CPU, length=255), "reference"),
        (of(CPU, length=256), "chunked"),
        (of(CPU, "bias", "allow", "softcap", "sink", length=512, window=True), "chunked"),
        (of(CPU, length=513), "blockwise"),
        (of(CPU, length=512, causal=False), "blockwise"),
        (of(CPU, length=512, aligned=False), "blockwise"),
        (of(CPU, length=512, context=2), "blockwise"),
        (of(CPU, "prefix", length=512), "blockwise"),
        (of(CPU, "dropout", length=512), "reference"),
        (of(CPU, "bias", "softcap", "sink", "prefix"), "blockwise"),
        (of(CPU, "dropout"), "reference"),
        (of(CPU, "bias by content"), "reference"),
        (of(GPU, "bias by content", length=8192), "reference"),
        (of(TPU, "bias by content"), "reference"),
        (of(GPU, "one query", length=1), "reference"),
        (of(CPU, "one query", length=1), "reference"),
        (dataclasses.replace(CPU, platform="metal"), "reference"),
    ],
)
def test_auto(case, kernel):
    assert choose("auto", case)[0] == kernel


@pytest.mark.parametrize(
    ("wanted", "case", "kernel", "why"),
    [
        ("auto", of(GPU, "bias"), "reference", "cudnn has no bias"),
        ("auto", of(GPU, "softcap", length=8192), "blockwise", "cudnn has no softcap"),
        ("auto", of(GPU, length=1023), "reference", "cudnn takes even lengths"),
        ("auto", of(GPU, head_width=192), "reference", "cudnn has no head width 192"),
        ("auto", of(GPU, causal=False, window=True), "reference", "no window in both directions"),
        ("cudnn", of(GPU, dtype="float32"), "reference", "takes no float32"),
        ("splash", of(TPU, "bias"), "reference", "splash has no bias"),
        ("splash", of(TPU, aligned=False), "reference", "cannot continue a cache"),
        ("splash", CPU, "blockwise", "needs a tpu, this is a cpu"),
        ("blockwise", of(CPU, "dropout"), "reference", "blockwise has no dropout"),
        ("auto", of(TPU, "bias by content"), "reference", "splash has no bias by content"),
        ("blockwise", of(CPU, "captured weights"), "reference", "has no captured weights"),
        ("blockwise", of(CPU, "one query", length=1), "reference", "has no one query"),
        ("blockwise", of(CPU, length=9), "blockwise", ""),
        ("chunked", of(TPU, length=9), "chunked", ""),
        ("chunked", of(GPU, causal=False), "reference", "is for tokens that look back at their"),
        ("chunked", of(CPU, "prefix"), "blockwise", "chunked has no prefix"),
        ("chunked", of(CPU, "captured weights"), "reference", "has no captured weights"),
        ("reference", of(TPU, *DOES["reference"]), "reference", ""),
        ("splash", of(TPU, length=100), "splash", ""),
    ],
)
def test_a_kernel_gives_way_to_one_that_can_and_says_why(wanted, case, kernel, why):
    found, line = choose(wanted, case)
    assert found == kernel
    assert why in line
    assert bool(line) == bool(why)


def test_a_call_says_what_it_asks_for():
    call = Call(tuple(RAGGED), window=3, softcap=1.0, prefix=2, groups=2)
    q, k, _ = call.arrays()
    found = kernels.case_of(q, k, dataclasses.replace(call.rule(), captures=True))
    asks = frozenset({"softcap", "prefix", "captured weights"})
    assert found == Case("cpu", 37, 37, 8, "float32", True, True, True, asks)
    cross = CASES["cross"]
    q, k, _ = cross.arrays()
    found = kernels.case_of(q[:, :1], k, cross.rule())
    assert (found.keys, found.aligned, found.asks) == (25, False, {"one query"})
    dropping = dataclasses.replace(call.rule(), dropout_rate=0.1)
    assert "dropout" not in kernels.case_of(q, k, dropping).asks  # no key: an evaluation


def test_a_model_computes_the_same_by_any_kernel_and_says_once_what_it_could_not(capsys):
    kernels._say_once.cache_clear()
    tokens_BL = np.random.default_rng(0).integers(0, 40, (2, 16)).astype(np.int32)
    outputs = {}
    for kernel in ("reference", "blockwise", "splash"):
        cfg = model_config(attention_kernel=kernel, num_kv_heads=2, window=5)
        outputs[kernel] = apply(cfg, random_params(cfg), tokens_BL).logits
    assert (outputs["splash"] == outputs["reference"]).all()
    assert (outputs["blockwise"] != outputs["reference"]).any()
    np.testing.assert_allclose(outputs["blockwise"], outputs["reference"], atol=1e-5)
    said = "attention: splash needs a tpu, this is a cpu; reference does it\n"
    assert capsys.readouterr().err == said  # two layers, one line
    out = apply(cfg, random_params(cfg), tokens_BL, capture=["attention_weights"])
    assert out.captured["attention_weights"].shape == (2, 2, 4, 16, 16)


def test_a_kernel_of_another_platform_is_refused_where_a_run_starts():
    with pytest.raises(UserError, match="splash, which needs a tpu, and this is a cpu, choose"):
        check_kernel("splash")
    check_kernel("blockwise")
    with pytest.raises(UserError, match=r"attention_kernel.*no compute_dtype = float32"):
        tiny.config(model__attention_kernel="cudnn")
    tiny.config(model__attention_kernel="cudnn", compute_dtype="bfloat16")


def test_the_platform_is_that_of_the_mesh():
    mesh = jax.sharding.AbstractMesh(
        (1,),
        ("data",),
        abstract_device=jax.sharding.AbstractDevice("TPU v5e", None, "tpu")
        if hasattr(jax.sharding, "AbstractDevice")
        else None,
    )
    assert platform() == "cpu"
    if mesh.abstract_device is not None:
        with jax.sharding.use_abstract_mesh(mesh):
            assert platform() == "tpu"
