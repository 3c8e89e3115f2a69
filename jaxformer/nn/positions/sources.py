"""Position sources: which id a token has. Encodings consume ids; they are given here.

A source turns the contiguous ids of a batch (or those that a task gives) into what a model gets,
for training and evaluation in `models/forward.py`, for generation in `generation/inputs.py`, and
nowhere else. Padding has id 0.

Draws are keyed, never carried: by step, site, row of the global batch and document within the row,
so that microbatches, devices, hosts and resumed runs draw alike. Where evaluation draws, its key
is a constant and the row's number is that of the example, whatever the batch size.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn import masks
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.positions import position_bound
from jaxformer.nn.positions.draws import places_in_runs, sorted_reals, sorted_samples, uniform

EVALUATION = 0  # the seed of what evaluation and generation draw
ARRAYS = {  # of a batch: ids -> the tokens that have them, and their segment ids
    "positions": ("tokens", "segment_ids"),
    "source_positions": ("source", "source_segment_ids"),
}


class PositionSource:
    """`contiguous`: the ids that the data give, 0, 1, 2, … in each document unless a task does."""

    is_default = True  # ids of evaluation are 0, 1, 2, …, which a model takes when given none

    def __init__(self, cfg: ModelConfig):
        self.range = cfg.position.source.range or cfg.max_length
        self.abacus = cfg.position.source.abacus

    def train(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        """int32[B, L]: ids in training."""
        return positions_BL

    def test(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        """int32[B, L]: ids in evaluation and generation."""
        return positions_BL

    def next(self, token_B: jax.Array, previous_B: jax.Array, planned_B: jax.Array) -> jax.Array:
        """int32[B]: the id of a generated token, `test` having planned ids for the whole call.

        `previous` is the id of the token before it.
        """
        return planned_B

    def most_tokens(self, bound: int) -> int:
        """The longest document that `test` has ids for, of `bound` (0: without end); 0: any."""
        return bound


class Offset(PositionSource):
    """Contiguous ids from a start that is uniform on 0 … range - n in training, n the document's
    length, and 0 in evaluation; Huang et al. 2025, and the random shift of Zhou et al. 2023."""

    def train(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        starts_BL = self.range - masks.extents(positions_BL, segment_ids_BL) + 1
        shifted_BL = positions_BL + uniform(key, segment_ids_BL, starts_BL)
        return jnp.where(segment_ids_BL != 0, shifted_BL, 0)


class Randomized(PositionSource):
    """Sorted ids drawn from 0 … range - 1 without replacement, one draw a document.

    Ruoss et al. 2023 §3: also in evaluation. There it is one draw for each example, the same at
    every evaluation; they draw for a whole batch at once, anew each time.
    """

    is_default = False

    def train(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        return sorted_samples(key, segment_ids_BL, positions_BL, self.range)

    test = train

    def most_tokens(self, bound: int) -> int:
        return self.range


class RandomFloat(PositionSource):
    """Sorted reals drawn uniformly from 0 to range, one draw a document; Shimizu et al. 2026, RFS.

    Ids are whole: they count steps, `random_float.steps` to a position, and encodings divide by
    that. No two tokens of a document share one. Evaluation draws as `randomized` does.
    """

    is_default = False

    def __init__(self, cfg: ModelConfig):
        super().__init__(cfg)
        self.size = cfg.position.source.random_float.steps * self.range

    def train(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        return sorted_reals(key, segment_ids_BL, positions_BL, self.size)

    test = train

    def most_tokens(self, bound: int) -> int:
        return self.size


class Abacus(PositionSource):
    """The place of a digit within its number, from 1; 0 for all other tokens; McLeish et al. 2024.

    Training adds k, uniform on 0 … max_offset, to the ids of digits: here one k a document, in
    their code one a batch. Numbers have their digits in the order of the data (theirs reversed).
    """

    is_default = False

    def train(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        ids_BL = self.test(tokens_BL, segment_ids_BL, positions_BL, key)
        counts_BL = jnp.full_like(ids_BL, self.abacus.max_offset + 1)
        return jnp.where(ids_BL > 0, ids_BL + uniform(key, segment_ids_BL, counts_BL), 0)

    def test(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        is_digit_BL = self._is_digit(tokens_BL) & (segment_ids_BL != 0)
        return places_in_runs(is_digit_BL, segment_ids_BL)

    def next(self, token_B: jax.Array, previous_B: jax.Array, planned_B: jax.Array) -> jax.Array:
        return jnp.where(self._is_digit(token_B), previous_B + 1, 0)

    def most_tokens(self, bound: int) -> int:
        return bound - 1 if bound else 0  # ids of a number that is the whole document start at 1

    def _is_digit(self, tokens: jax.Array) -> jax.Array:
        return jnp.isin(tokens, jnp.array(self.abacus.digits, jnp.int32))


class Coupled(PositionSource):
    """Ids of a task, equal where tokens belong together, such as digits of one place; 0 for others.

    Cho et al. 2024: training adds an offset to all but 0, uniform on what the range has room for.
    Only rows of the task have them: there are none of a text to go on with.
    """

    is_default = False

    def train(
        self, tokens_BL: jax.Array, segment_ids_BL: jax.Array, positions_BL: jax.Array, key: RowKey
    ) -> jax.Array:
        starts_BL = self.range - masks.extents(positions_BL, segment_ids_BL) + 1
        shifted_BL = positions_BL + uniform(key, segment_ids_BL, starts_BL)
        return jnp.where(positions_BL > 0, shifted_BL, 0)


SOURCES: dict[str, type[PositionSource]] = {
    "contiguous": PositionSource,
    "offset": Offset,
    "randomized": Randomized,
    "random_float": RandomFloat,
    "abacus": Abacus,
    "coupled": Coupled,
}


def make_source(cfg: ModelConfig) -> PositionSource:
    """The position source of a model."""
    return SOURCES[cfg.position.source.kind](cfg)


def give_ids(
    cfg: ModelConfig, batch: Mapping[str, jax.Array], key: RowKey | None
) -> dict[str, jax.Array]:
    """A batch with the ids that the model's source gives its tokens.

    `key` is the step's in training, None in evaluation, where `rows` of the batch are the numbers
    of its examples. Source and target of an encoder-decoder are drawn apart.
    """
    source, placed = make_source(cfg), dict(batch)
    give = source.test if key is None else source.train
    if key is None:
        rows_B = batch["rows"] if "rows" in batch else jnp.arange(len(batch["tokens"]))
        key = evaluation_key(rows_B)
    for name, (tokens, segment_ids) in ARRAYS.items():
        if name in batch:
            arrays = batch[tokens], batch[segment_ids], batch[name]
            placed[name] = give(*arrays, key.fold(name))
    return placed


def check_any_text(cfg: ModelConfig) -> None:
    """Raises UserError where only rows of the data have ids."""
    if cfg.position.source.kind == "coupled":
        what = "is coupled: the ids are in the rows of the task"
        mend = "evaluate by length, without samples (suite lengths)"
        raise UserError("model.position.source.kind", what, mend)


def evaluation_ids(
    cfg: ModelConfig,
    tokens_BL: jax.Array,
    segment_ids_BL: jax.Array,
    rows_B: jax.Array,
    name: str = "positions",
) -> jax.Array:
    """int32[B, L]: the ids that evaluation gives to tokens, those of a source by its `name`.

    Raises UserError where only rows of the data have them.
    """
    check_any_text(cfg)
    positions_BL = masks.contiguous_positions(segment_ids_BL)
    key = evaluation_key(rows_B).fold(name)
    return make_source(cfg).test(tokens_BL, segment_ids_BL, positions_BL, key)


class Limit(NamedTuple):
    """The most tokens of a document (0: any) and the field that says so."""

    tokens: int
    field: str


def document_limit(cfg: ModelConfig) -> Limit:
    """How long a document a model can read or write."""
    own_range = (
        cfg.position.source.kind in ("randomized", "random_float") and cfg.position.source.range
    )
    bound = position_bound(cfg)
    field = "model.max_length" if bound in (0, cfg.max_length) else "model.position.kind"
    field = "model.position.source.range" if own_range else field
    return Limit(make_source(cfg).most_tokens(bound), field)


def evaluation_key(rows_B: jax.Array) -> RowKey:
    """What the rows of an evaluation draw by."""
    return RowKey(jax.random.key(EVALUATION), rows_B)
