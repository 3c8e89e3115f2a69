"""Generation in one jitted program: prefill, then a `while_loop` with early exit.

The cache lives in the loop's carry. The last token is never fed back: n prompt tokens and m new
ones cost n + m - 1 positions. Sampling keys are fold_in(fold_in(key, row), token index), so that
neither early exit nor padding nor the number of tokens asked for changes a draw. Calls of one
bucket (see `inputs`) and sampler share one compilation.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.generation.inputs import Inputs, bucket, decode, prefill, prepare, spread
from jaxformer.generation.sampling import Sampler
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
    cache: Cache


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
) -> Generated:
    """Continues each prompt until `eos_id` (-1: none) or for `max_new_tokens` (one or int[B]).

    Prompts are right-padded: of row b, `prompts_BP[b, :lengths_B[b]]` counts, the rest is ignored.
    An encoder-decoder takes sources, whose segment ids are 1, or 0 for padding; its prompts are
    what the target starts with, `bos_id` alone unless they are given. Tokens and randomized
    positions are drawn by the numbers of the examples, `rows_B`, unless given 0 … B - 1.
    `prefix`: tokens of a prompt see each other both ways, as in a prefix language model.
    Raises UserError for an empty prompt, ids outside the vocabulary, more tokens than a learned
    position table holds, or a model that does not generate.
    """
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
    graphdef, state = nnx.split(model)
    rows, longest, mesh = len(inputs.limits_B), int(inputs.limits_B.max()), mesh_of(state)
    with using(mesh):
        found = _generate(
            graphdef,
            nnx.to_pure_dict(state),
            spread(mesh, inputs),
            put_key(mesh, key),
            np.int32(eos_id),
            np.int32(pad_id),
            sampler=sampler,
            new=bucket(longest),
            prefix=prefix,
        )
    tokens_BT, lengths_B, logprobs_BT = (np.asarray(x)[:rows] for x in found)
    return Generated(tokens_BT[:, :longest], lengths_B, logprobs_BT[:, :longest])


@functools.partial(jax.jit, static_argnames=("graphdef", "sampler", "new", "prefix"))
def _generate(
    graphdef: Any,
    params: Any,
    inputs: Inputs,
    key: jax.Array,
    eos_id: jax.Array,
    pad_id: jax.Array,
    *,
    sampler: Sampler,
    new: int,
    prefix: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    model = nnx.merge(graphdef, params)
    batch_size = inputs.prompts_BP.shape[0]
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(inputs.rows_B))

    def choose(index: jax.Array, logits_BV: jax.Array) -> tuple[jax.Array, jax.Array]:
        step_keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, index)
        token_B = sampler(logits_BV, step_keys_B)
        logprobs_BV = jax.nn.log_softmax(logits_BV, axis=-1)
        return token_B, jnp.take_along_axis(logprobs_BV, token_B[:, None], axis=-1)[:, 0]

    def record(carry: _Carry, logits_BV: jax.Array) -> _Carry:
        """Chooses token `index` and writes it, or padding in finished rows."""
        token_B, logprob_B = choose(carry.next, logits_BV)
        token_B = jnp.where(carry.done_B, pad_id, token_B)
        logprob_B = jnp.where(carry.done_B, 0.0, logprob_B)
        lengths_B = carry.lengths_B + ~carry.done_B
        return carry._replace(
            next=carry.next + 1,
            token_B=token_B,
            lengths_B=lengths_B,
            done_B=carry.done_B | (token_B == eos_id) | (lengths_B >= inputs.limits_B),
            tokens_BT=carry.tokens_BT.at[:, carry.next].set(token_B),
            logprobs_BT=carry.logprobs_BT.at[:, carry.next].set(logprob_B),
        )

    def step(carry: _Carry) -> _Carry:
        """Feeds the newest tokens back; finished rows are padding and leave the cache alone."""
        logits_BV, cache = decode(model, carry.token_B, ~carry.done_B, carry.cache)
        return record(carry._replace(cache=cache), logits_BV)

    def unfinished(carry: _Carry) -> jax.Array:
        return ~jnp.all(carry.done_B)

    logits_BV, cache = prefill(model, inputs, new, prefix=prefix)
    carry = _Carry(
        next=jnp.int32(0),
        token_B=jnp.zeros(batch_size, jnp.int32),
        done_B=jnp.zeros(batch_size, bool),
        lengths_B=jnp.zeros(batch_size, jnp.int32),
        tokens_BT=jnp.full((batch_size, new), pad_id, jnp.int32),
        logprobs_BT=jnp.zeros((batch_size, new), jnp.float32),
        cache=cache,
    )
    carry = jax.lax.while_loop(unfinished, step, record(carry, logits_BV))
    found = carry.tokens_BT, carry.lengths_B, carry.logprobs_BT
    return replicate(found[0]), replicate(found[1]), replicate(found[2])  # every process reads them
