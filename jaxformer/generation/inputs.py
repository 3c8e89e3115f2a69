"""What decoding starts from: checked inputs in buckets, and one pass over prompt and source.

Shapes are bucketed (`bucket`: powers of two up to 128, then multiples of 128): prompt length P,
source length S and number of new tokens T each take their bucket, the cache P + T slots. Calls
whose buckets, batch size and model are equal share one compilation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxformer.errors import UserError
from jaxformer.nn.cache import Cache, init_cache
from jaxformer.nn.linear import Turnable
from jaxformer.nn.platform import head_dtype, platform
from jaxformer.nn.positions import encoding_class
from jaxformer.nn.positions.sources import document_limit, evaluation_ids, make_source
from jaxformer.sharding import mesh_of, put_whole


class Inputs(NamedTuple):
    """A batch to decode: right-padded prompts, most new tokens for each row, sources if any.

    `rows_B` are the numbers of the examples, by which positions are drawn where they are.
    """

    prompts_BP: np.ndarray | jax.Array
    lengths_B: np.ndarray | jax.Array
    limits_B: np.ndarray | jax.Array
    rows_B: np.ndarray | jax.Array
    source_BS: np.ndarray | jax.Array | None
    source_segment_ids_BS: np.ndarray | jax.Array | None


def bucket(size: int) -> int:
    """The smallest power of two (at least 8) that holds `size`; above 128, multiple of 128."""
    if size > 128:
        return -(-size // 128) * 128
    return max(8, 1 << (size - 1).bit_length())


def room(config: Any, prompt_length: int, wanted: int) -> int:
    """The number of new tokens, up to `wanted`, that fit after a prompt; may be below 1."""
    most = document_limit(config).tokens
    return min(wanted, most - prompt_length) if most else wanted


def prepare(
    model: Any,
    prompts_BP: np.ndarray | None,
    lengths_B: np.ndarray | None,
    *,
    source_BS: np.ndarray | None,
    source_segment_ids: np.ndarray | None,
    max_new_tokens: int | np.ndarray,
    bos_id: int,
    eos_id: int,
    rows_B: np.ndarray | None,
) -> Inputs:
    """Checks and pads. Raises UserError for what the model cannot decode."""
    config = model.config
    _check_architecture(config, source_BS)
    if prompts_BP is None or lengths_B is None:
        if source_BS is None or prompts_BP is not None or lengths_B is not None:
            mend = "only an encoder-decoder starts without: give both"
            raise UserError("prompts", "or their lengths are missing", mend)
        prompts_BP = np.full((len(source_BS), 1), bos_id, np.int32)
        lengths_B = np.ones(len(source_BS), np.int32)
    prompts_BP, lengths_B = np.asarray(prompts_BP), np.asarray(lengths_B)
    if prompts_BP.ndim != 2 or lengths_B.shape != prompts_BP.shape[:1] or not len(lengths_B):
        shapes = f"{prompts_BP.shape} and lengths {lengths_B.shape}"
        raise UserError("prompts", f"have shape {shapes}", "give [B, P] and [B], B at least 1")
    if np.shape(max_new_tokens) not in ((), lengths_B.shape):
        what = f"has shape {np.shape(max_new_tokens)} for {len(lengths_B)} prompts"
        raise UserError("max_new_tokens", what, "give one number, or one for each prompt")
    limits_B = np.broadcast_to(np.asarray(max_new_tokens, np.int32), lengths_B.shape)
    _check_prompts(config, prompts_BP, lengths_B, limits_B, eos_id)
    longest = int(lengths_B.max())
    real_BP = np.arange(longest) < lengths_B[:, None]
    padded_BP = _widen(np.where(real_BP, prompts_BP[:, :longest], 0))
    segments_BS = None
    if source_BS is not None:
        source_BS = np.asarray(source_BS)
        segments_BS = np.ones_like(source_BS) if source_segment_ids is None else source_segment_ids
        source_BS, segments_BS = _sources(config, len(lengths_B), source_BS, segments_BS)
    rows_B = np.arange(len(lengths_B)) if rows_B is None else np.asarray(rows_B)
    sizes = lengths_B.astype(np.int32), limits_B, rows_B.astype(np.int32)
    return Inputs(padded_BP, *sizes, source_BS, segments_BS)


def spread(mesh: Mesh | None, inputs: Inputs) -> Inputs:
    """The inputs on a mesh, with copies of the last row until they spread evenly."""
    return inputs if mesh is None else put_whole(mesh, inputs, "edge")


def for_decoding(model: Any) -> Any:
    """A model that computes the same, and on one CPU in bfloat16 faster.

    There its kernels are turned, which halves the time of products of few rows: a copy of them
    beside the model's own. Elsewhere, and if they are turned already, it is the model itself.
    """
    graphdef, state = nnx.split(model)
    if mesh_of(state) is not None or model.dtype != jnp.bfloat16 or platform() != "cpu":
        return model
    copy = nnx.merge(graphdef, state)
    turned = [part.turn() for _, part in nnx.iter_graph(copy) if isinstance(part, Turnable)]
    return copy if any(turned) else model


def prefill(
    model: Any, inputs: Inputs, new: int, *, prefix: bool = False
) -> tuple[jax.Array, Cache]:
    """Logits [B, V] of the token after each prompt, and a cache with room for `new` tokens.

    The source is encoded here, once, and its keys and values are kept in the cache. With `prefix`
    tokens of a prompt see later ones of it too.
    """
    batch_size, width = inputs.prompts_BP.shape
    lengths_B, config = jnp.asarray(inputs.lengths_B), model.config
    ids_BC = _plan(config, inputs, width + new)
    dtype, extent_B = head_dtype(model.dtype), ids_BC.max(1) + 1
    cache = init_cache(config, batch_size, width + new, dtype, extent_B, positions_BC=ids_BC)
    if inputs.source_BS is not None:
        source = jnp.asarray(inputs.source_BS), jnp.asarray(inputs.source_segment_ids_BS)
        rows_B = jnp.asarray(inputs.rows_B)
        source_ids_BS = evaluation_ids(config, *source, rows_B, "source_positions")
        hidden_BSD = model.encode(*source, source_ids_BS)
        cache = model.attach(cache, hidden_BSD, source[1])
    real_BP = (jnp.arange(width)[None] < lengths_B[:, None]).astype(jnp.int32)
    prompt_ids_BP = jnp.where(real_BP != 0, ids_BC[:, :width], 0)
    how = {"prefix": real_BP != 0} if prefix else {}
    out = _decoder(model)(
        inputs.prompts_BP, segment_ids=real_BP, positions=prompt_ids_BP, cache=cache, **how
    )
    last_B1D = jnp.take_along_axis(out.hidden, (lengths_B - 1)[:, None, None], axis=1)
    # The readout of one position a row: the logits of the whole prompt are dead code.
    return model.readout(last_B1D[:, 0]), out.cache


def decode(
    model: Any, token_B: jax.Array, real_B: jax.Array, cache: Cache
) -> tuple[jax.Array, Cache]:
    """Logits [B, V] after one more token; a row that is not real leaves its cache alone."""
    real_B1 = real_B.astype(jnp.int32)[:, None]
    ids_B = make_source(model.config).next(token_B, *cache.planned())
    ids_B1 = jnp.where(real_B, ids_B, 0)[:, None]
    out = _decoder(model)(token_B[:, None], segment_ids=real_B1, positions=ids_B1, cache=cache)
    return out.logits[:, 0], out.cache


def _plan(config: Any, inputs: Inputs, width: int) -> jax.Array:
    """int32[B, C]: the ids of prompt and new tokens as a full forward pass would have them.

    The last of n + m tokens is never fed back, so they have n + m - 1 ids.
    """
    prompts_BP = jnp.asarray(inputs.prompts_BP)
    tokens_BC = jnp.pad(prompts_BP, ((0, 0), (0, width - prompts_BP.shape[1])))
    total_B = jnp.asarray(inputs.lengths_B) + jnp.asarray(inputs.limits_B) - 1
    segments_BC = (jnp.arange(width)[None] < total_B[:, None]).astype(jnp.int32)
    return evaluation_ids(config, tokens_BC, segments_BC, jnp.asarray(inputs.rows_B))


def _decoder(model: Any) -> Any:
    return model.decode if model.config.architecture == "encoder_decoder" else model


def _widen(rows_BL: np.ndarray) -> np.ndarray:
    missing = bucket(rows_BL.shape[1]) - rows_BL.shape[1]
    return np.pad(rows_BL, ((0, 0), (0, missing))).astype(np.int32)


def _sources(
    config: Any, batch_size: int, source_BS: np.ndarray, segments_BS: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Checked sources and segment ids, as narrow as they can be, in their bucket."""
    if source_BS.ndim != 2 or segments_BS.shape != source_BS.shape or len(source_BS) != batch_size:
        what = f"has shape {source_BS.shape} and segment ids {segments_BS.shape}"
        raise UserError("source", what, f"give [B, S] twice, B = {batch_size} as of the prompts")
    if not np.isin(segments_BS, (0, 1)).all():
        mend = "a source to decode is one document: 1, and 0 for padding"
        raise UserError("source_segment_ids", f"has {np.unique(segments_BS).tolist()}", mend)
    real_BS = segments_BS == 1
    source_BS = np.where(real_BS, source_BS, 0)
    for row, ids in enumerate(source_BS):
        check_ids(config, "source", row, ids)
    (most, field), longest = document_limit(config), int(real_BS.sum(1).max())
    if most and longest > most:
        what = f"number {int(real_BS.sum(1).argmax())} has {longest} tokens"
        raise UserError("source", what, f"{field} allows {most}: shorten it")
    width = int(np.flatnonzero(real_BS.any(0)).max(initial=0)) + 1
    return _widen(source_BS[:, :width]), _widen(segments_BS[:, :width])


def _check_architecture(config: Any, source_BS: np.ndarray | None) -> None:
    if config.architecture == "encoder":
        what = "is encoder, which predicts no next token"
        raise UserError("model.architecture", what, "generate with a decoder or encoder_decoder")
    for kind in config.position_kinds:
        if not encoding_class(kind).cacheable:
            what = f"has {kind}, which declares that it cannot be cached"
            raise UserError("model.position.kind", what, "generation decodes with a cache")
    both = config.architecture == "encoder_decoder"
    if both and source_BS is None:
        raise UserError("source", "is missing", "an encoder-decoder continues a source: give it")
    if not both and source_BS is not None:
        mend = "put it in the prompt: only an encoder_decoder takes a source apart"
        raise UserError(
            "source", f"is given while model.architecture = {config.architecture}", mend
        )


def _check_prompts(
    config: Any,
    prompts_BP: np.ndarray,
    lengths_B: np.ndarray,
    limits_B: np.ndarray,
    eos_id: int,
) -> None:
    if limits_B.min() < 1:
        raise UserError("max_new_tokens", f"is {limits_B.min()}", "ask for at least 1")
    for row, length in enumerate(lengths_B):
        if length < 1:
            mend = "give it at least one token, such as the one that starts a document"
            raise UserError("prompt", f"number {row} is empty", mend)
        if length > prompts_BP.shape[1]:
            what = f"number {row} has length {length} in an array of {prompts_BP.shape[1]} tokens"
            raise UserError("prompt", what, "lengths count the real tokens of each row")
        check_ids(config, "prompt", row, prompts_BP[row, :length])
    if eos_id >= config.vocab_size:
        what = f"is {eos_id}, outside the model's vocabulary of {config.vocab_size}"
        raise UserError("eos_id", what, "give -1 to never stop early")
    (most, field), row = document_limit(config), int((lengths_B + limits_B).argmax())
    if most and lengths_B[row] + limits_B[row] > most:
        what = f"is {most}, below {lengths_B[row]} prompt tokens + {limits_B[row]} new ones"
        raise UserError(field, what, "shorten the prompt or ask for fewer tokens")


def check_ids(config: Any, where: str, row: int, ids: np.ndarray) -> None:
    """Raises UserError for ids outside the vocabulary."""
    if ids.size and (ids.min() < 0 or ids.max() >= config.vocab_size):
        what = f"number {row} has token {ids.min() if ids.min() < 0 else ids.max()}"
        raise UserError(where, what, f"the model's vocabulary is 0 to {config.vocab_size - 1}")
