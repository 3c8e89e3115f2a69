"""Generation in two jitted programs: prefill with the first token, then a `while_loop`.

The loop ends early, with the last row that ends, and may be left after some tokens and entered
again: so `stream` runs the very programs of `generate` and gives the very same tokens. The cache
lives in the loop's carry, which is donated. The last token is never fed back: n prompt tokens and
m new ones cost n + m - 1 positions. Sampling keys are fold_in(fold_in(key, row), token index), so
that neither early exit nor padding nor the number of tokens asked for changes a draw. Calls of one
bucket (see `inputs`) and sampler share one compilation.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation.inputs import (
    Inputs,
    bucket,
    decode,
    for_decoding,
    prefill,
    prepare,
    spread,
)
from jaxformer.generation.sampling import Sampler, penalise
from jaxformer.nn.cache import Cache
from jaxformer.sharding import mesh_of, put_key, replicate, using


@dataclasses.dataclass(frozen=True)
class Generated:
    """New tokens only, without the prompt: tokens int32[B, T], lengths int32[B], logprobs [B, T].

    `lengths` counts the end-of-sequence token; after it `tokens` is padding and `logprobs` is 0.
    Log-probabilities are of the model's own distribution: before temperature and filters.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray


class _Carry(NamedTuple):
    next: jax.Array  # index of the token that comes next
    token_B: jax.Array  # the newest
    done_B: jax.Array
    lengths_B: jax.Array
    tokens_BT: jax.Array
    logprobs_BT: jax.Array
    seen_BV: jax.Array | None  # tokens of prompt and continuation, where they have a penalty
    cache: Cache


class _Fixed(NamedTuple):
    """What stays the same from token to token."""

    key: jax.Array
    rows_B: np.ndarray | jax.Array
    limits_B: np.ndarray | jax.Array
    eos_id: jax.Array | np.int32
    pad_id: jax.Array | np.int32
    penalty: jax.Array | np.float32 | None


def generate(
    model: nnx.Module,
    prompts_BP: np.ndarray | None = None,
    lengths_B: np.ndarray | None = None,
    *,
    source_BS: np.ndarray | None = None,
    source_segment_ids: np.ndarray | None = None,
    max_new_tokens: int | np.ndarray,
    sampler: Sampler,
    key: jax.Array,
    eos_id: int,
    bos_id: int = 1,
    pad_id: int = 0,
    rows_B: np.ndarray | None = None,
    prefix: bool = False,
    repetition_penalty: float = 1.0,
) -> Generated:
    """Continues each prompt until `eos_id` (-1: none) or for `max_new_tokens` (one or int[B]).

    Prompts are right-padded: of row b, `prompts_BP[b, :lengths_B[b]]` counts, the rest is ignored.
    An encoder-decoder takes sources, whose segment ids are 1, or 0 for padding; its prompts are
    what the target starts with, `bos_id` alone unless they are given. Tokens and randomized
    positions are drawn by the numbers of the examples, `rows_B`, unless given 0 … B - 1.
    `prefix`: tokens of a prompt see each other both ways, as in a prefix language model.
    `repetition_penalty` is for tokens of prompt (not of a source) and continuation, before the
    sampler's own steps: see `sampling.penalise`.
    Raises UserError for an empty prompt, ids outside the vocabulary, more tokens than a learned
    position table holds, or a model that does not generate.
    """
    *_, found = stream(
        model,
        prompts_BP,
        lengths_B,
        source_BS=source_BS,
        source_segment_ids=source_segment_ids,
        max_new_tokens=max_new_tokens,
        sampler=sampler,
        key=key,
        eos_id=eos_id,
        bos_id=bos_id,
        pad_id=pad_id,
        rows_B=rows_B,
        prefix=prefix,
        repetition_penalty=repetition_penalty,
        every=0,
    )
    return found


def stream(
    model: nnx.Module,
    prompts_BP: np.ndarray | None = None,
    lengths_B: np.ndarray | None = None,
    *,
    source_BS: np.ndarray | None = None,
    source_segment_ids: np.ndarray | None = None,
    max_new_tokens: int | np.ndarray,
    sampler: Sampler,
    key: jax.Array,
    eos_id: int,
    bos_id: int = 1,
    pad_id: int = 0,
    rows_B: np.ndarray | None = None,
    prefix: bool = False,
    repetition_penalty: float = 1.0,
    every: int = 4,
) -> Iterator[Generated]:
    """What `generate` gives, as far as it has come, after every so many tokens (0: at the end).

    The last is what `generate` returns, bit for bit.
    """
    if not 1e-3 <= repetition_penalty <= 1e3:
        mend = "give .001 to 1000: 1 changes nothing, more makes repetitions rarer"
        raise UserError("repetition_penalty", f"is {repetition_penalty}", mend)
    inputs = prepare(
        model,
        prompts_BP,
        lengths_B,
        source_BS=source_BS,
        source_segment_ids=source_segment_ids,
        max_new_tokens=max_new_tokens,
        bos_id=bos_id,
        eos_id=eos_id,
        rows_B=rows_B,
    )
    graphdef, state = nnx.split(for_decoding(model))
    params, mesh = nnx.to_pure_dict(state), mesh_of(state)
    rows, longest, inputs = len(inputs.limits_B), int(inputs.limits_B.max()), spread(mesh, inputs)
    fixed = _Fixed(
        put_key(mesh, key),
        inputs.rows_B,
        inputs.limits_B,
        np.int32(eos_id),
        np.int32(pad_id),
        None if repetition_penalty == 1 else np.float32(repetition_penalty),
    )
    with using(mesh):
        carry = _start(
            graphdef, params, inputs, fixed, sampler=sampler, new=bucket(longest), prefix=prefix
        )
    until, ended = 0, False
    while not ended:
        until = min(until + (every or longest), longest)
        with using(mesh):
            carry = _advance(graphdef, params, carry, fixed, np.int32(until), sampler=sampler)
        found = carry.tokens_BT, carry.lengths_B, carry.logprobs_BT, carry.done_B
        tokens_BT, lengths_B, logprobs_BT, done_B = (np.array(x)[:rows] for x in found)
        ended = until == longest or bool(done_B.all())
        yield Generated(tokens_BT[:, :longest], lengths_B, logprobs_BT[:, :longest])


@functools.partial(jax.jit, static_argnames=("graphdef", "sampler", "new", "prefix"))
def _start(
    graphdef: Any,
    params: Any,
    inputs: Inputs,
    fixed: _Fixed,
    *,
    sampler: Sampler,
    new: int,
    prefix: bool,
) -> _Carry:
    """Prefill, and the first token of each row."""
    model = nnx.merge(graphdef, params)
    batch_size, width = inputs.prompts_BP.shape
    logits_BV, cache = prefill(model, inputs, new, prefix=prefix)
    seen_BV = None
    if fixed.penalty is not None:
        real_BP = jnp.arange(width)[None] < jnp.asarray(inputs.lengths_B)[:, None]
        ids_BP = jnp.where(real_BP, inputs.prompts_BP, logits_BV.shape[1])
        seen_BV = _mark(jnp.zeros(logits_BV.shape, bool), ids_BP)
    carry = _Carry(
        next=jnp.int32(0),
        token_B=jnp.zeros(batch_size, jnp.int32),
        done_B=jnp.zeros(batch_size, bool),
        lengths_B=jnp.zeros(batch_size, jnp.int32),
        tokens_BT=jnp.full((batch_size, new), fixed.pad_id, jnp.int32),
        logprobs_BT=jnp.zeros((batch_size, new), jnp.float32),
        seen_BV=seen_BV,
        cache=cache,
    )
    return _shared(_record(carry, logits_BV, fixed, sampler))


@functools.partial(jax.jit, static_argnames=("graphdef", "sampler"), donate_argnames="carry")
def _advance(
    graphdef: Any,
    params: Any,
    carry: _Carry,
    fixed: _Fixed,
    until: jax.Array | np.int32,
    *,
    sampler: Sampler,
) -> _Carry:
    """More tokens, until there are so many or all rows are done."""
    model = nnx.merge(graphdef, params)

    def step(carry: _Carry) -> _Carry:
        """Feeds the newest tokens back; finished rows are padding and leave the cache alone."""
        logits_BV, cache = decode(model, carry.token_B, ~carry.done_B, carry.cache)
        return _record(carry._replace(cache=cache), logits_BV, fixed, sampler)

    def unfinished(carry: _Carry) -> jax.Array:
        return ~jnp.all(carry.done_B) & (carry.next < until)

    return _shared(jax.lax.while_loop(unfinished, step, carry))


def _record(carry: _Carry, logits_BV: jax.Array, fixed: _Fixed, sampler: Sampler) -> _Carry:
    """Chooses token `next` and writes it, or padding in finished rows."""
    by_row = jax.vmap(jax.random.fold_in, (None, 0))
    keys_B = by_row(fixed.key, jnp.asarray(fixed.rows_B))
    step_keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, carry.next)
    seen_BV, allowed_BV = carry.seen_BV, logits_BV
    if seen_BV is not None and fixed.penalty is not None:
        allowed_BV = penalise(logits_BV, seen_BV, jnp.asarray(fixed.penalty))
    token_B = sampler(allowed_BV, step_keys_B)
    logprobs_BV = jax.nn.log_softmax(logits_BV, axis=-1)
    logprob_B = jnp.take_along_axis(logprobs_BV, token_B[:, None], axis=-1)[:, 0]
    token_B = jnp.where(carry.done_B, fixed.pad_id, token_B)
    logprob_B = jnp.where(carry.done_B, 0.0, logprob_B)
    lengths_B = carry.lengths_B + ~carry.done_B
    ended_B = (token_B == fixed.eos_id) | (lengths_B >= fixed.limits_B)
    return carry._replace(
        next=carry.next + 1,
        token_B=token_B,
        lengths_B=lengths_B,
        done_B=carry.done_B | ended_B,
        tokens_BT=carry.tokens_BT.at[:, carry.next].set(token_B),
        logprobs_BT=carry.logprobs_BT.at[:, carry.next].set(logprob_B),
        seen_BV=None if seen_BV is None else _mark(seen_BV, token_B[:, None]),
    )


def _mark(seen_BV: jax.Array, ids_BL: jax.Array) -> jax.Array:
    """True for these ids too; those outside the vocabulary are none."""
    rows_B1 = jnp.arange(len(seen_BV))[:, None]
    return seen_BV.at[rows_B1, ids_BL].set(True, mode="drop")


def _shared(carry: _Carry) -> _Carry:
    """What every process reads is on all devices."""
    names = ("tokens_BT", "lengths_B", "logprobs_BT", "done_B")
    return carry._replace(**{name: replicate(getattr(carry, name)) for name in names})
