"""Tiny models to try properties on, and the first place where two results differ.

Models run op by op, without jit, so that what XLA compiles for one of them serves all others.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.models import Model, build, forward, init
from jaxformer.models.output import Output
from jaxformer.nn.positions import PositionEncoding, position_bound

ROWS, LENGTH = 4, 12
WORDS = ROWS * LENGTH  # of targets: one for each place; a source has the WORDS after them
TOLERANCE = 1e-5  # of the largest logit, or of 1
TINY: dict[str, Any] = {
    "num_layers": 2,
    "num_encoder_layers": 0,
    "d_model": 32,
    "num_heads": 6,  # no power of two, and shared keys
    "num_kv_heads": 3,
    "head_dim": 8,
    "d_ff": 32,
    "vocab_size": 2 * WORDS,
    "max_length": 8,  # encodings without a bound are tried beyond it
    "window": 0,
    "layer_pattern": "",
    "initializer": "lecun",  # logits of order 1 from the start
    "scan_layers": False,
    "remat": "none",
}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, the encoding that its config names, and parameters none of which is constant."""

    cfg: ModelConfig
    graphdef: nnx.GraphDef
    params: dict[str, Any]

    @property
    def model(self) -> Model:
        return nnx.merge(self.graphdef, self.params)

    @property
    def encoding(self) -> PositionEncoding:
        """The one of `position.kind`; of an encoder-decoder, its causal form."""
        model: Any = self.model
        side = model.decoder if self.cfg.architecture == "encoder_decoder" else model
        return side.position[self.cfg.position.kind]

    @property
    def bound(self) -> int:
        return position_bound(self.cfg)

    def run(
        self,
        tokens_BL: np.ndarray,
        segments_BL: np.ndarray | None = None,
        ids_BL: np.ndarray | None = None,
    ) -> Output:
        """The full forward pass."""
        segments_BL = np.ones_like(tokens_BL) if segments_BL is None else segments_BL
        batch = make_batch(tokens_BL, segments_BL, ids_BL)
        with jax.disable_jit(self.cfg.scan_layers):  # a scan would be compiled anew in each call
            return forward(self.model, batch)

    def logits(
        self,
        tokens_BL: np.ndarray,
        segments_BL: np.ndarray | None = None,
        ids_BL: np.ndarray | None = None,
    ) -> np.ndarray:
        return np.asarray(self.run(tokens_BL, segments_BL, ids_BL).logits)


def shrink(cfg: ModelConfig, changes: Mapping[str, Any]) -> ModelConfig:
    """A tiny language model with the options of `cfg` but for `changes`. Raises UserError."""
    head = dataclasses.replace(cfg.head, kind="vocabulary", num_classes=0)
    source = dataclasses.replace(cfg.position.source, kind="contiguous", range=0)
    position = dataclasses.replace(cfg.position, source=source)
    cfg = dataclasses.replace(cfg, head=head, position=position, **{**TINY, **changes})
    if position_bound(cfg):
        cfg = dataclasses.replace(cfg, max_length=LENGTH + 4)
    cfg.check()
    return cfg


def make_subject(cfg: ModelConfig) -> Subject:
    """Fresh parameters; those that start constant, such as biases, are moved off."""
    params, keys = init(cfg, jax.random.key(0)), iter(jax.random.split(jax.random.key(1), 1000))

    def move(x: jax.Array) -> jax.Array:
        by = jax.random.uniform(next(keys), x.shape, jnp.float32, 0.05, 0.2)
        return x + by if (x == x.min()).all() else x

    return Subject(cfg, nnx.split(build(cfg))[0], jax.tree.map(move, params))


def make_batch(tokens_BL: Any, segments_BL: Any, ids_BL: Any) -> dict[str, Any]:
    """Sources are laid out like the targets, in words of their own."""
    target = {"tokens": tokens_BL, "segment_ids": segments_BL, "positions": ids_BL}
    source = {"source": tokens_BL + WORDS, "source_segment_ids": segments_BL}
    return target | source | {"source_positions": ids_BL}


def draw_words(*shape: int) -> np.ndarray:
    """Tokens of a target: int32 from 0 to WORDS - 1."""
    return np.random.default_rng(shape).integers(0, WORDS, shape).astype(np.int32)


def draw_normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def differ(
    what: str,
    actual_BLV: np.ndarray,
    expected_BLV: np.ndarray,
    tolerance: float = TOLERANCE,
    row: int = 0,
    token: int = 0,
) -> str | None:
    """The first place where logits differ by more than `tolerance` of the largest, in words.

    `row` and `token` number the first of the given ones.
    """
    if not expected_BLV.size:
        return None
    scale = max(1.0, float(np.abs(expected_BLV).max()))
    error_BL = np.abs(actual_BLV - expected_BLV).max(-1)
    for b, t in np.argwhere(~(error_BL <= tolerance * scale)):
        return f"{what}: row {b + row}, token {t + token}: logits are off by {error_BL[b, t]:.2g}"
    return None
