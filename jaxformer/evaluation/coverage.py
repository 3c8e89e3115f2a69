"""What an evaluation visits and training never did: position ids, distances, bias buckets.

Encodings that read ids by themselves (learned, sinusoidal, FIRE) are judged by ids, relative ones
by distances, T5's by buckets, and a user's own by what it declares; `none` has neither. Training
visited what rows as long as the config allows may hold: with contiguous ids 0 … n - 1 and distances
up to n - 1, a window taken into account; an offset widens the ids, a randomized source both.

A token counts where its own id is new, or the largest distance from it to a token that it sees.
Position interpolation divides distances before they are compared. The other scalings change
frequencies pair by pair: the distances themselves are counted then.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import LayerSpec, ModelConfig, RunConfig
from jaxformer.evaluation.schemes import trained_length
from jaxformer.nn import masks
from jaxformer.nn.positions import encoding_class
from jaxformer.nn.positions.sources import ARRAYS, give_ids
from jaxformer.nn.positions.t5 import buckets

IDS, DISTANCES, BUCKETS = "untrained_ids", "untrained_distances", "untrained_buckets"
UNTRAINED = {  # metric -> what it counts
    IDS: "ids that training never had",
    DISTANCES: "distances that training never had",
    BUCKETS: "bias buckets that training never used",
}
NONE = 2**31 - 1  # no id or distance is new


class New(NamedTuple):
    """From which id, or distance within a window (0: none), on `metric` counts a token."""

    metric: str
    first: int
    window: int


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Shares of the evaluated tokens at what a run of config `trained` never visited."""

    trained: RunConfig
    needs_task = False

    def sums(
        self, model: Any, batch: Mapping[str, jax.Array]
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Counts supervised tokens of decoders, all tokens of encoders."""
        placed = give_ids(model.config, batch, None)
        count: dict[str, Any] = dict.fromkeys(UNTRAINED, jnp.float32(0))
        total = jnp.float32(0)
        for name, (_, segment_ids) in ARRAYS.items():
            if name not in placed:
                continue
            ids_BL, segments_BL = placed[name], placed[segment_ids]
            causal = name == "positions" and model.config.architecture != "encoder"
            counted_BL = batch["weights"] > 0 if causal else segments_BL != 0
            prefix_BL = batch.get("prefix") if causal else None
            total += counted_BL.sum(dtype=jnp.float32)
            seen: dict[str, jax.Array] = {}
            for new in new_from(self.trained, model.config, name):
                reached_BL = ids_BL
                if new.metric != IDS:
                    reached_BL = largest_distances(
                        ids_BL, segments_BL, causal, prefix_BL, new.window
                    )
                new_BL = reached_BL >= new.first
                seen[new.metric] = seen.get(new.metric, False) | new_BL
            for metric, new_BL in seen.items():
                count[metric] += (new_BL & counted_BL).sum(dtype=jnp.float32)
        return {metric: (count[metric], total) for metric in UNTRAINED}


def new_from(trained: RunConfig, cfg: ModelConfig, name: str) -> list[New]:
    """What is new to a model trained by `trained` and evaluated as `cfg`, layer by layer.

    `name` is the array of ids: 'positions', or 'source_positions' of an encoder-decoder.
    """
    is_source = name == "source_positions"
    num_layers = cfg.encoder_layers if is_source else cfg.num_layers
    length = trained.data.target_length or trained_length(trained)
    length = trained.data.length if is_source else length
    causal = not is_source and cfg.architecture != "encoder"
    found = [_new(trained.model, cfg, LayerSpec(cfg.position_kinds[0], 0), 0, length, causal)]
    layers = trained.model.layer_specs(num_layers), cfg.layer_specs(num_layers)
    for before, now in zip(*layers, strict=True):
        found.append(_new(trained.model, cfg, now, before.window, length, causal))
    at_input = encoding_class(cfg.position_kinds[0]).at_input
    found = found if at_input else found[1:]
    return list(dict.fromkeys(new for new in found if new is not None))


def largest_distances(
    ids_BL: jax.Array,
    segment_ids_BL: jax.Array,
    causal: bool,
    prefix_BL: jax.Array | None,
    window: int,
) -> jax.Array:
    """int32[B, L]: the largest |q - k| between each token's id and those that it attends to."""
    order_BL = masks.order(segment_ids_BL)
    mask_BLS = masks.attention_mask(
        masks.Visibility(
            order_BL, order_BL, segment_ids_BL, segment_ids_BL, causal, prefix_BL, window
        )
    )
    far_BLS = jnp.abs(ids_BL[..., None] - ids_BL[:, None])
    return jnp.where(mask_BLS, far_BLS, 0).max(-1)


def describe(by_length: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """A line for each metric that counted something, from totals by length."""
    lines = []
    for metric, what in UNTRAINED.items():
        shares = [(n, t[metric].mean) for n, t in by_length.items() if metric in t]
        new = [f"{100 * share:.1f} % at {n}" for n, share in shares if share]
        if new:
            between = " … " if len(new) > 2 else ", "
            lines.append(f"Tokens with {what}: {between.join(dict.fromkeys((new[0], new[-1])))}")
    return lines


def _new(
    trained: ModelConfig, cfg: ModelConfig, now: LayerSpec, window: int, length: int, causal: bool
) -> New | None:
    """What is new in one layer, whose window in training was `window`."""
    source, kind = trained.position.source, now.position
    num_ids = source.num_ids(length, trained.max_length)
    reach = length - 1 if source.kind in ("contiguous", "offset") else num_ids - 1
    if window and source.kind in ("contiguous", "offset"):
        reach = min(reach, window - 1)
    if kind in ("none", "cope", "hard_alibi"):  # no ids, or a window, beyond which all are alike
        return None
    if kind == "shaw" and reach >= cfg.position.shaw.max_distance:
        return None  # farther keys share a vector that was trained
    if kind == "t5":
        return New(BUCKETS, _first_new_bucket(cfg, reach, causal), now.window)
    if not encoding_class(kind).shift_invariant:
        return New(IDS, num_ids, 0)
    shrink = _interpolation(cfg) / _interpolation(trained) if kind in ("rope", "xpos") else 1.0
    return New(DISTANCES, math.floor(reach * shrink + 1e-6) + 1, now.window)


def _interpolation(cfg: ModelConfig) -> float:
    """What position interpolation divides ids by."""
    scaling = cfg.position.rope.scaling
    return scaling.factor if scaling.kind == "linear" else 1.0


def _first_new_bucket(cfg: ModelConfig, reach: int, causal: bool) -> int:
    section = cfg.position.t5
    used = set(buckets(np.arange(reach + 1), section, causal).tolist())
    farther = np.arange(reach + 1, max(reach, section.max_distance) + 1)
    new = [bucket not in used for bucket in buckets(farther, section, causal).tolist()]
    return int(farther[new.index(True)]) if True in new else NONE
