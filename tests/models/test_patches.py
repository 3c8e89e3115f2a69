"""Images as tokens: patches by hand and as torch's convolution cuts them, counts, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from configs.presets import vit_b16
from jaxformer.analysis.accounts import count_parameters
from jaxformer.config import ModelConfig, RunConfig
from jaxformer.errors import UserError
from jaxformer.models import abstract_params, build
from jaxformer.nn.patches import PatchEmbedding
from tests.builders import random_params

PATCHES = {"image_size": 4, "patch_size": 2, "channels": 2}


def config(**changes):
    c = base.get_config()
    c.model.update(architecture="encoder", num_layers=2, d_model=8, num_heads=2, max_length=5)
    c.model.patches.update(PATCHES)
    c.model.head.update(kind="sequence", pooler=False, num_classes=3)
    c.objective.kind = "sequence_classification"
    c.data.update(source="images", path="digits", length=5)
    c.update_from_flattened_dict(changes)
    return RunConfig.from_config_dict(c)


def embedding(cfg, kernel, bias, class_token):
    graphdef, _ = nnx.split(PatchEmbedding(cfg.model, jnp.dtype("float32")))
    return nnx.merge(graphdef, {"kernel": kernel, "bias": bias, "class_token": class_token})


def test_patches_by_hand():
    """A 4 × 4 image in four patches: each is its pixels row by row, channels innermost."""
    image = np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2)  # 8 y + 2 x + channel
    embed = embedding(config(), jnp.eye(8), jnp.zeros(8), jnp.full(8, -1.0))
    expected = [
        [-1] * 8,
        [0, 1, 2, 3, 8, 9, 10, 11],
        [4, 5, 6, 7, 12, 13, 14, 15],
        [16, 17, 18, 19, 24, 25, 26, 27],
        [20, 21, 22, 23, 28, 29, 30, 31],
    ]
    np.testing.assert_array_equal(embed(jnp.asarray(image))[0], expected)
    with pytest.raises(ValueError, match=r"images are \(4, 5, 2\)"):
        embed(jnp.zeros((1, 4, 5, 2)))


def test_it_is_a_convolution_with_a_stride():
    rng = np.random.default_rng(0)
    images, kernel, bias = (
        rng.normal(size=(3, 4, 4, 2)),
        rng.normal(size=(8, 8)),
        rng.normal(size=8),
    )
    found = embedding(config(), *map(jnp.float32, (kernel, bias, np.zeros(8))))(jnp.float32(images))
    expected = np.zeros((3, 4, 8))
    for place, (y, x) in enumerate(((0, 0), (0, 2), (2, 0), (2, 2))):
        for dy, dx, channel in np.ndindex(2, 2, 2):
            weight = kernel[4 * dy + 2 * dx + channel]
            expected[:, place] += images[:, y + dy, x + dx, channel, None] * weight
    np.testing.assert_allclose(found[:, 1:], expected + bias, rtol=1e-4, atol=1e-5)


def test_the_preset_is_the_published_size():
    """86.6 M at 1,000 classes: patches, class token, positions, 12 layers, a norm, a head."""
    d, ff, layers, classes, tokens = 768, 3072, 12, 1000, 14 * 14 + 1
    attention, feed_forward, norm = 4 * (d * d + d), d * ff + ff + ff * d + d, 2 * d
    expected = (16 * 16 * 3 + 1) * d + d + tokens * d
    expected += layers * (attention + feed_forward + 2 * norm) + norm + (d + 1) * classes
    assert expected == 86_567_656
    cfg = ModelConfig.from_config_dict(vit_b16.get_config().model)
    assert cfg.patches.length == tokens
    assert count_parameters(abstract_params(build(cfg))) == expected


def test_a_model_of_images_sees_all_of_them():
    """Moving one pixel of any patch moves the logits; segment ids may be left out."""
    cfg = config()
    graphdef, _ = nnx.split(build(cfg.model))
    params = random_params(cfg.model)
    ones = jnp.ones((1, 5), jnp.int32), jnp.arange(5)[None]

    def classes(images):
        return nnx.merge(graphdef, params)(images, *ones).logits

    images = jnp.asarray(np.random.default_rng(1).normal(size=(1, 4, 4, 2)), jnp.float32)
    slopes = jax.jit(jax.jacobian(classes))(images)[0, :, 0]
    assert slopes.shape == (3, 4, 4, 2)
    assert (np.abs(slopes).max(0) > 1e-6).all()
    bare = nnx.merge(graphdef, params)(images).logits
    np.testing.assert_allclose(bare, classes(images), rtol=1e-6)


def test_what_does_not_go_together_is_refused():
    for changes, what in (
        ({"model.patches.patch_size": 3}, r"patch_size: 3 does not divide image_size = 4"),
        ({"model.patches.image_size": 0}, r"model.patches.patch_size: is set to 2 but never read"),
        ({"model.architecture": "decoder"}, r"model.architecture: is decoder while model.patches"),
        ({"model.head.kind": "token"}, r"model.head.kind: is token while model.patches"),
        ({"model.vocab_size": 9}, r"model.vocab_size: is set to 9 but never read"),
        ({"data.length": 4}, r"data.length: is 4, but an image has 4 patches, set it to 5"),
        ({"model.max_length": 4}, r"data.length: 5 is more than model.max_length = 4"),
        ({"data.source": "csv", "data.path": "a"}, r"image_size: is 4 while data.source = csv"),
        ({"data.pack": True}, r"data.pack: is set to True but never read"),
        ({"data.label_field": "x"}, r"data.label_field: is set"),
        ({"data.tokenizer.kind": "char"}, r"data.tokenizer.kind: is char while data.source"),
        ({"objective.kind": "token_classification"}, r"objective.kind: is token_classification"),
    ):
        with pytest.raises(UserError, match=what):
            config(**changes)
    c = base.get_config()
    c.model.head.pooler = False
    with pytest.raises(UserError, match=r"model.head.pooler: is false while model.head.kind"):
        RunConfig.from_config_dict(c)
