"""Beam search in one jitted program, for any model that gives the logits of a next token.

Each step takes the K best of all continuations of a row's live beams by log-probability. Those
that end (the end token, or the row's budget is used up: an unfinished hypothesis competes at that
length) are scored by their own length, log-probability / penalty(length), and join the best
`num_return` found so far; the others live on and widen again at the next step. So beam size 1 is
greedy search under every penalty, and a beam no narrower than the tree is exhaustive search.

A row is done when no live beam can beat the worst hypothesis kept. Log-probabilities only fall and
penalties only rise with length, so the best that a beam of log-probability s can still reach is
s / penalty(budget); a bound by its present length would stop too early.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
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
from jaxformer.nn.cache import Cache
from jaxformer.sharding import mesh_of, replicate, using

# (carried, parents_BK, tokens_BK, real_B) -> (logits_BKV, carried): beam k continues what beam
# parents[k] was by one token. Rows that are not real are done: whatever they give is ignored.
StepLogits = Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]

LENGTH_PENALTIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gnmt": lambda n: (5 + n) / 6,  # Wu et al. 2016, equation 14
    "notes": lambda n: (5 + n) / 5,
    "power": lambda n: n,  # alpha 1: the mean log-probability of a token
}


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    """What a log-probability is divided by: form(n) ** alpha for n tokens, the end token included.

    gnmt (5 + n) / 6 · notes (5 + n) / 5 · power n. The default, alpha 0, divides by 1.
    """

    form: str = "gnmt"
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if self.form not in LENGTH_PENALTIES:
            mend = f"choose from {', '.join(LENGTH_PENALTIES)}"
            raise UserError("length_penalty", f"is {self.form!r}", mend)
        if not 0 <= self.alpha < math.inf:
            raise UserError("alpha", f"is {self.alpha}", "give 0 (no length penalty) or more")

    def divisors(self, longest: int) -> np.ndarray:
        """float32[longest + 1], by number of tokens; entry 0 is of no use."""
        lengths = np.maximum(np.arange(longest + 1, dtype=np.float64), 1)
        return (LENGTH_PENALTIES[self.form](lengths) ** self.alpha).astype(np.float32)


NO_PENALTY = LengthPenalty()


class Beams(NamedTuple):
    """The N best hypotheses of each row, best first, without the prompt.

    `lengths_BN` counts the end-of-sequence token, after it `tokens_BNT` is padding.
    `logprobs_BN` are of whole hypotheses, `scores_BN` the same over the length penalty. Where a
    row has fewer hypotheses the rest have length 0 and score -inf.
    """

    tokens_BNT: Any
    lengths_BN: Any
    scores_BN: Any
    logprobs_BN: Any


class _Search(NamedTuple):
    length: jax.Array  # tokens of every live beam
    tokens_BKT: jax.Array
    logprobs_BK: jax.Array  # -inf: no beam
    parents_BK: jax.Array  # which beams of the step before they continue
    done_B: jax.Array
    found: Beams
    carried: Any


def beam_search(
    model: nnx.Module,
    prompts_BP: np.ndarray | None = None,
    lengths_B: np.ndarray | None = None,
    *,
    source_BS: np.ndarray | None = None,
    source_segment_ids: np.ndarray | None = None,
    beam_size: int,
    max_new_tokens: int | np.ndarray,
    eos_id: int,
    bos_id: int = 1,
    pad_id: int = 0,
    length_penalty: LengthPenalty = NO_PENALTY,
    num_return: int = 1,
    prefix: bool = False,
    rows_B: np.ndarray | None = None,
) -> Beams:
    """The best continuations of each prompt that beam search finds; arguments as for `generate`.

    Hypotheses end with `eos_id` (-1: none) or have their row's `max_new_tokens`. Raises UserError
    where `generate` does, and unless 1 <= num_return <= beam_size.
    """
    if beam_size < 1:
        raise UserError("beam_size", f"is {beam_size}", "give 1 (greedy) or more")
    if not 1 <= num_return <= beam_size:
        mend = f"give 1 to beam_size = {beam_size}"
        raise UserError("num_return", f"is {num_return}", mend)
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
    longest = int(inputs.limits_B.max())
    new = bucket(longest)
    with using(mesh):
        found = _beam_search(
            graphdef,
            params,
            spread(mesh, inputs),
            length_penalty.divisors(new),
            np.int32(eos_id),
            np.int32(pad_id),
            beam_size=beam_size,
            num_return=num_return,
            prefix=prefix,
        )
    tokens_BNT, *others = (np.asarray(x)[: len(inputs.limits_B)] for x in found)
    return Beams(tokens_BNT[..., :longest], *others)


@functools.partial(jax.jit, static_argnames=("graphdef", "beam_size", "num_return", "prefix"))
def _beam_search(
    graphdef: Any,
    params: Any,
    inputs: Inputs,
    divisors: jax.Array,
    eos_id: jax.Array,
    pad_id: jax.Array,
    *,
    beam_size: int,
    num_return: int,
    prefix: bool,
) -> Beams:
    model = nnx.merge(graphdef, params)
    batch_size = inputs.prompts_BP.shape[0]
    first_B1 = jnp.arange(batch_size)[:, None] * beam_size  # beams are rows of one large batch

    def step_logits(
        cache: Cache, parents_BK: jax.Array, tokens_BK: jax.Array, real_B: jax.Array
    ) -> tuple[jax.Array, Cache]:
        cache = cache.trade_rows((first_B1 + parents_BK).ravel())
        real = jnp.repeat(real_B, beam_size)
        logits, cache = decode(model, tokens_BK.ravel(), real, cache)
        return logits.reshape(batch_size, beam_size, -1), cache

    logits_BV, cache = prefill(model, inputs, len(divisors) - 1, prefix=prefix)
    cache = cache.take_rows(jnp.repeat(jnp.arange(batch_size), beam_size))
    found = search(
        step_logits,
        logits_BV,
        cache,
        jnp.asarray(inputs.limits_B),
        divisors,
        eos_id,
        pad_id,
        beam_size=beam_size,
        num_return=num_return,
    )
    return jax.tree.map(replicate, found)  # every process reads them


def search(
    step_logits: StepLogits,
    first_logits_BV: jax.Array,
    carried: Any,
    limits_B: jax.Array,
    divisors: jax.Array,
    eos_id: jax.Array,
    pad_id: jax.Array,
    *,
    beam_size: int,
    num_return: int,
) -> Beams:
    """Beam search over any model; to be called under jit.

    `first_logits_BV` are of the first token, `carried` is the model's state of all K beams of each
    row after the prompt. `limits_B`: most tokens of a row's hypotheses, at most T, where
    `divisors` float32[T + 1] must not fall with length.
    """
    (batch_size, vocab_size), width = first_logits_BV.shape, len(divisors) - 1

    def choose(state: _Search, logits_BKV: jax.Array) -> _Search:
        """Appends one token: the K best continuations of each row, ended ones moved to `found`."""
        # The K best continuations of all beams are among the K best of each.
        logits_BKV = logits_BKV.astype(jnp.float32)
        log_normaliser_BK1 = jax.nn.logsumexp(logits_BKV, axis=-1, keepdims=True)
        best_BKJ, choices_BKJ = jax.lax.top_k(logits_BKV, min(beam_size, vocab_size))
        total_BKJ = state.logprobs_BK[..., None] + (best_BKJ - log_normaliser_BK1)
        logprobs_BK, at_BK = jax.lax.top_k(total_BKJ.reshape(batch_size, -1), beam_size)
        token_BK = jnp.take_along_axis(choices_BKJ.reshape(batch_size, -1), at_BK, axis=1)
        parents_BK = at_BK // choices_BKJ.shape[-1]
        tokens_BKT = jnp.take_along_axis(state.tokens_BKT, parents_BK[..., None], axis=1)
        tokens_BKT = tokens_BKT.at[:, :, state.length].set(token_BK)
        length = state.length + 1
        ended_BK = (token_BK == eos_id) | (length >= limits_B)[:, None]
        scores_BK = jnp.where(ended_BK, logprobs_BK / divisors[length], -jnp.inf)
        lengths_BK = jnp.broadcast_to(length, ended_BK.shape)
        ended = Beams(tokens_BKT, lengths_BK, scores_BK, logprobs_BK)
        found = _best(state.found, ended, num_return)
        live_BK = ~ended_BK & ~state.done_B[:, None]
        logprobs_BK = jnp.where(live_BK, logprobs_BK, -jnp.inf)
        attainable_B = logprobs_BK.max(1) / divisors[limits_B]
        return state._replace(
            length=length,
            tokens_BKT=tokens_BKT,
            logprobs_BK=logprobs_BK,
            parents_BK=parents_BK,
            done_B=attainable_B <= found.scores_BN[:, -1],
            found=found,
        )

    def step(state: _Search) -> _Search:
        newest_BK = jax.lax.dynamic_index_in_dim(
            state.tokens_BKT, state.length - 1, axis=2, keepdims=False
        )
        logits_BKV, carried = step_logits(state.carried, state.parents_BK, newest_BK, ~state.done_B)
        return choose(state._replace(carried=carried), logits_BKV)

    def padding(beams: int) -> jax.Array:
        return jnp.full((batch_size, beams, width), pad_id, jnp.int32)

    nothing_BN = jnp.full((batch_size, num_return), -jnp.inf, jnp.float32)
    start_K = jnp.where(jnp.arange(beam_size) == 0, 0.0, -jnp.inf)  # one beam: the prompt
    state = _Search(
        length=jnp.int32(0),
        tokens_BKT=padding(beam_size),
        logprobs_BK=jnp.broadcast_to(start_K, (batch_size, beam_size)),
        parents_BK=jnp.zeros((batch_size, beam_size), jnp.int32),
        done_B=jnp.zeros(batch_size, bool),
        found=Beams(
            padding(num_return),
            jnp.zeros((batch_size, num_return), jnp.int32),
            nothing_BN,
            nothing_BN,
        ),
        carried=carried,
    )
    first_BKV = jnp.broadcast_to(first_logits_BV[:, None], (batch_size, beam_size, vocab_size))
    state = jax.lax.while_loop(lambda s: ~s.done_B.all(), step, choose(state, first_BKV))
    return state.found


def _best(kept: Beams, more: Beams, count: int) -> Beams:
    """The best by score, best first; of equal ones the earlier found."""
    both = Beams(*(jnp.concatenate(pair, axis=1) for pair in zip(kept, more, strict=True)))
    _, index_BN = jax.lax.top_k(both.scores_BN, count)

    def take(x: jax.Array) -> jax.Array:
        at = index_BN.reshape(index_BN.shape + (1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, at, axis=1)

    return Beams(*map(take, both))
