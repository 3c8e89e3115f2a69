"""Generation in one jitted program: prefill, then a `while_loop` with early exit.

The cache lives in the loop's carry. The last token is never fed back: n prompt tokens and m new
ones cost n + m - 1 positions. Sampling keys are fold_in(fold_in(key, row), token index), so that
neither early exit nor padding nor the number of tokens asked for changes a draw.

Shapes are bucketed (`bucket`: powers of two up to 128, then multiples of 128): prompt length P and
number of new tokens T each take their bucket, the cache P + T slots. Calls whose buckets, batch
size, model and sampler are equal share one compilation.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.errors import UserError
from jaxformer.generation.sampling import Sampler
from jaxformer.nn.cache import Cache, init_cache


@dataclasses.dataclass(frozen=True)
class Generated:
    """New tokens only, without the prompt.

    `lengths_B` counts the end-of-sequence token; after it `tokens_BT` is padding and `logprobs_BT`
    is 0. Log-probabilities are of the model's own distribution: before temperature and filters.
    """

    tokens_BT: np.ndarray
    lengths_B: np.ndarray
    logprobs_BT: np.ndarray


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
    prompts_BP: np.ndarray,
    lengths_B: np.ndarray,
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    eos_id: int,
    pad_id: int = 0,
) -> Generated:
    """Continues each prompt until `eos_id` (-1: none) or for `max_new_tokens`.

    Prompts are right-padded: of row b, `prompts_BP[b, :lengths_B[b]]` counts, the rest is ignored.
    Raises UserError for an empty prompt, ids outside the vocabulary, or more tokens than a learned
    position table holds.
    """
    prompts_BP, lengths_B = np.asarray(prompts_BP), np.asarray(lengths_B)
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    _check(config, prompts_BP, lengths_B, max_new_tokens, eos_id)
    batch_size, longest = len(lengths_B), int(lengths_B.max())
    padded_BP = np.zeros((batch_size, bucket(longest)), np.int32)
    real_BP = np.arange(longest) < lengths_B[:, None]
    padded_BP[:, :longest] = np.where(real_BP, prompts_BP[:, :longest], 0)
    graphdef, state = nnx.split(model)
    tokens_BT, lengths_B, logprobs_BT = _generate(
        graphdef,
        nnx.to_pure_dict(state),
        padded_BP,
        lengths_B.astype(np.int32),
        key,
        np.int32(max_new_tokens),
        np.int32(eos_id),
        np.int32(pad_id),
        sampler=sampler,
        new=bucket(max_new_tokens),
    )
    return Generated(
        tokens_BT=np.asarray(tokens_BT)[:, :max_new_tokens],
        lengths_B=np.asarray(lengths_B),
        logprobs_BT=np.asarray(logprobs_BT)[:, :max_new_tokens],
    )


def bucket(size: int) -> int:
    """The smallest power of two (at least 8) that holds `size`; above 128, multiple of 128."""
    if size > 128:
        return -(-size // 128) * 128
    return max(8, 1 << (size - 1).bit_length())


def position_bound(config: Any) -> int:
    """Most tokens a sequence may have, 0 if positions are unbounded."""
    return config.max_length if config.position.kind == "learned" else 0


def room(config: Any, prompt_length: int, wanted: int) -> int:
    """The number of new tokens, up to `wanted`, that fit after a prompt; may be below 1."""
    bound = position_bound(config)
    return min(wanted, bound - prompt_length) if bound else wanted


@functools.partial(jax.jit, static_argnames=("graphdef", "sampler", "new"))
def _generate(
    graphdef: Any,
    params: Any,
    prompts_BP: jax.Array,
    lengths_B: jax.Array,
    key: jax.Array,
    max_new_tokens: jax.Array,
    eos_id: jax.Array,
    pad_id: jax.Array,
    *,
    sampler: Sampler,
    new: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    model = nnx.merge(graphdef, params)
    batch_size, width = prompts_BP.shape
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch_size))

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
        return carry._replace(
            next=carry.next + 1,
            token_B=token_B,
            lengths_B=carry.lengths_B + ~carry.done_B,
            done_B=carry.done_B | (token_B == eos_id),
            tokens_BT=carry.tokens_BT.at[:, carry.next].set(token_B),
            logprobs_BT=carry.logprobs_BT.at[:, carry.next].set(logprob_B),
        )

    def step(carry: _Carry) -> _Carry:
        """Feeds the newest tokens back; finished rows are padding and leave the cache alone."""
        real_B1 = (~carry.done_B).astype(jnp.int32)[:, None]
        out = model(carry.token_B[:, None], segment_ids=real_B1, cache=carry.cache)
        return record(carry._replace(cache=out.cache), out.logits[:, 0])

    def unfinished(carry: _Carry) -> jax.Array:
        return (carry.next < max_new_tokens) & ~jnp.all(carry.done_B)

    real_BP = (jnp.arange(width)[None] < lengths_B[:, None]).astype(jnp.int32)
    cache = init_cache(model.config, batch_size, width + new, model.dtype)
    out = model(prompts_BP, segment_ids=real_BP, cache=cache)
    last_B1D = jnp.take_along_axis(out.hidden, (lengths_B - 1)[:, None, None], axis=1)
    carry = _Carry(
        next=jnp.int32(0),
        token_B=jnp.zeros(batch_size, jnp.int32),
        done_B=jnp.zeros(batch_size, bool),
        lengths_B=jnp.zeros(batch_size, jnp.int32),
        tokens_BT=jnp.full((batch_size, new), pad_id, jnp.int32),
        logprobs_BT=jnp.zeros((batch_size, new), jnp.float32),
        cache=out.cache,
    )
    # The readout of one position a row: the logits of the whole prompt are dead code.
    carry = record(carry, model.readout(last_B1D[:, 0]))
    carry = jax.lax.while_loop(unfinished, step, carry)
    return carry.tokens_BT, carry.lengths_B, carry.logprobs_BT


def _check(
    config: Any, prompts_BP: np.ndarray, lengths_B: np.ndarray, max_new_tokens: int, eos_id: int
) -> None:
    if max_new_tokens < 1:
        raise UserError("max_new_tokens", f"is {max_new_tokens}", "ask for at least 1")
    if prompts_BP.ndim != 2 or lengths_B.shape != prompts_BP.shape[:1] or not len(lengths_B):
        shapes = f"{prompts_BP.shape} and lengths {lengths_B.shape}"
        raise UserError("prompts", f"have shape {shapes}", "give [B, P] and [B], B at least 1")
    for row, length in enumerate(lengths_B):
        if length < 1:
            mend = "give it at least one token, such as the one that starts a document"
            raise UserError("prompt", f"number {row} is empty", mend)
        if length > prompts_BP.shape[1]:
            what = f"number {row} has length {length} in an array of {prompts_BP.shape[1]} tokens"
            raise UserError("prompt", what, "lengths count the real tokens of each row")
        ids = prompts_BP[row, :length]
        if ids.min() < 0 or ids.max() >= config.vocab_size:
            what = f"number {row} has token {ids.min() if ids.min() < 0 else ids.max()}"
            mend = f"the model's vocabulary is 0 to {config.vocab_size - 1}"
            raise UserError("prompt", what, mend)
    if eos_id >= config.vocab_size:
        what = f"is {eos_id}, outside the model's vocabulary of {config.vocab_size}"
        raise UserError("eos_id", what, "give -1 to never stop early")
    bound, total = position_bound(config), int(lengths_B.max()) + max_new_tokens
    if bound and total > bound:
        what = f"is {bound}, below {lengths_B.max()} prompt tokens + {max_new_tokens} new ones"
        raise UserError("model.max_length", what, "shorten the prompt or ask for fewer tokens")
