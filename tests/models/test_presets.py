"""Published shapes: parameters to the digit, from shapes alone, and a place for each on a mesh.

Where our count is not the published one, the difference is explained in numbers.
"""

import functools
import importlib
import math
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh

from jaxformer import sharding
from jaxformer.analysis.accounts import active_parameters, count_parameters
from jaxformer.config import ModelConfig, RunConfig
from jaxformer.models import abstract_params, build
from tests.builders import change

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "presets"
# Ours, published.
COUNTS = {
    "vaswani_base": (63_082_496, 44_138_496 + 37_000 * 512),
    "vaswani_big": (214_245_376, 176_357_376 + 37_000 * 1024),
    # Two rows of 768 for the kind of sentence.
    "bert_base": (109_512_762, 109_514_298 - 2 * 768),
    "gpt2_small": (124_439_808, 124_439_808),
    "gpt2_medium": (354_823_168, 354_823_168),
    "gpt2_large": (774_030_080, 774_030_080),
    "gpt2_xl": (1_557_611_200, 1_557_611_200),
    "t5_small": (60_506_624, 60_506_624),
    "t5_v1_1_small": (76_961_152, 76_961_152),
    # Positions start at row 2 of the encoder's and of the decoder's table.
    "bart_base": (139_417_344, 139_420_416 - 2 * 2 * 768),
    "vit_b16": (86_567_656, 85_798_656 + 769 * 1000),
    "llama_7b": (6_738_415_616, 6_738_415_616),
    "llama_gqa": (8_030_261_248, 8_030_261_248),
    "mixtral_8x7b": (46_702_792_704, 46_702_792_704),
    # T5 base, and in each of 12 layers 7 more experts and a router.
    "switch_base_8": (619_339_008, 222_903_552 + 12 * (7 * 2 * 768 * 3072 + 768 * 8)),
}


def config(name):
    return importlib.import_module(f"configs.presets.{name}").get_config()


@functools.cache
def shapes(name, **changes):
    values = config(name).model
    return abstract_params(build(ModelConfig.from_config_dict(change(values, changes))))


def test_every_preset_is_counted():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters(name):
    ours, published = COUNTS[name]
    assert count_parameters(shapes(name)) == ours == published
    assert f"{ours:,} parameters" in " ".join((FOLDER / f"{name}.py").read_text().split())


@pytest.mark.parametrize("name", COUNTS)
def test_a_run_needs_only_data(name):
    values = config(name)
    values.data.path = "text.txt"
    if values.objective.kind == "seq2seq":
        values.data.target_path = "target.txt"
    cfg = RunConfig.from_config_dict(values)
    assert cfg.data.tokenizer.vocab_size == cfg.model.vocab_size
    assert cfg.data.length <= cfg.model.max_length


@pytest.mark.parametrize("name", COUNTS)
def test_every_parameter_has_a_place_on_a_mesh(name):
    """Every matrix is cut along d_model over 64 devices, but tables of positions by 4 more."""
    mesh = AbstractMesh((1, 64, 1, 1, 4), sharding.AXES)
    d_model = config(name).model.d_model
    padded = jax.eval_shape(lambda tree: sharding.pad(mesh, tree), shapes(name))
    placed = sharding.params_shardings(mesh, padded)
    for (keys, leaf), where in zip(
        jax.tree_util.tree_leaves_with_path(padded), jax.tree.leaves(placed), strict=True
    ):
        path, spec = sharding.path_of(keys), list(where.spec)
        if path.endswith(("kernel", "table")):
            assert spec.count("fsdp") == 1, path
            assert leaf.shape[spec.index("fsdp")] == d_model, path
            # Few classes, few experts.
            few = path == "head/classifier/kernel" or "router/" in path
            assert spec.count("tensor") == (not few and "position/" not in path), path
        else:
            assert not any(spec), path


def test_what_a_token_of_mixtral_meets():
    """12.9 B of 46.7 B, as published."""
    cfg = ModelConfig.from_config_dict(config("mixtral_8x7b").model)
    assert active_parameters(cfg) == 12_879_925_248
    words = (FOLDER / "mixtral_8x7b.py").read_text()
    assert "12,879,925,248 a token" in words


@pytest.mark.parametrize(("final_norm", "expected"), [("true", 44_140_544), ("auto", 44_138_496)])
def test_the_stack_of_vaswani_base_is_that_of_torch(final_norm, expected):
    """torch.nn.Transformer() has no embeddings, and a norm after each last layer."""
    params = shapes("vaswani_base", final_norm=final_norm)
    assert count_parameters(params["encoder"]) + count_parameters(params["decoder"]) == expected


def test_bert_with_its_pooler():
    """The published encoder with its pooler has 109,482,240; 2 · 768 are kinds of sentence."""
    head = {"head.kind": "sequence", "head.transform": False, "head_bias": False}
    params = shapes("bert_base", **head, **{"head.num_classes": 2})
    classifier = count_parameters(params["head"]["classifier"])
    assert classifier == 2 * 768 + 2
    assert count_parameters(params) - classifier == 109_482_240 - 2 * 768


@pytest.mark.parametrize("name", COUNTS)
def test_scanned_and_unrolled_layers_have_the_same_parameters(name):
    if config(name).model.moe.every > 1:
        pytest.skip("layers that differ are not scanned")
    counts = [count_parameters(shapes(name, scan_layers=scan)) for scan in (False, True)]
    assert counts[0] == counts[1] == COUNTS[name][0]


def test_what_the_shapes_of_t5_leave_out():
    """No bias of a linear map or norm anywhere; one set of position biases for all layers."""
    for name in ("t5_small", "t5_v1_1_small"):
        leaves = jax.tree_util.tree_leaves_with_path(shapes(name))
        assert not [path for path, _ in leaves if sharding.path_of(path).endswith("bias")]
        found = {
            sharding.path_of(path): leaf.shape for path, leaf in leaves if "position" in str(path)
        }
        heads = 8 if name == "t5_small" else 6
        assert found == {f"{s}/position/t5/buckets": (32, heads) for s in ("encoder", "decoder")}
    inner = shapes("t5_v1_1_small")["encoder"]["layers"][0]["attention"]["query"]["kernel"]
    assert inner.shape == (512, 6 * 64)
    assert math.prod(shapes("t5_v1_1_small")["head"]["kernel"].shape) == 512 * 32_128
