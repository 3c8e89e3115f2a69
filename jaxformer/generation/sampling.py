"""Samplers: frozen objects that choose the next token from logits and one key per row.

`sampler(logits_BV, keys_B) -> tokens_B`. The steps come in one documented order: the repetition
penalty, which `generate` applies (`penalise`), then temperature, then top-k, then top-p or min-p;
each later step sees the renormalised distribution that the earlier ones left, and greedy choice too
goes by the penalised logits. `filtered` shows what is left: kept tokens keep their logit over the
temperature, dropped ones are -inf. A token's noise depends on the key and its id alone, so that
filters which drop nothing (`TopK(V)`, `TopP(1)`, `MinP` close to 0) draw what `Temperature` draws.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxformer.errors import UserError


class Sampler(Protocol):
    """Hashable (a jitted caller takes it as a static argument) and free of state."""

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The most probable token; of equal ones the first."""

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        del keys_B
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Temperature:
    """Draws from softmax(logits / temperature)."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)

    def filtered(self, logits_BV: jax.Array) -> jax.Array:
        return _heat(logits_BV, self.temperature)

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        return _draw(self.filtered(logits_BV), keys_B)


@dataclasses.dataclass(frozen=True)
class TopK:
    """Draws among the k most probable tokens: exactly k, also when logits are equal."""

    k: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        if self.k < 1:
            raise UserError("sampler.k", f"is {self.k}", "give a number of tokens of at least 1")

    def filtered(self, logits_BV: jax.Array) -> jax.Array:
        return _top_k(_heat(logits_BV, self.temperature), self.k)

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        return _draw(self.filtered(logits_BV), keys_B)


@dataclasses.dataclass(frozen=True)
class TopP:
    """Nucleus sampling (Holtzman et al. 2020): a token stays iff the mass before it is below p.

    "Before" is in order of falling probability, so that the kept mass is at least p and one token
    always stays. k > 0 keeps the k most probable first.
    """

    p: float
    temperature: float = 1.0
    k: int = 0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        _check_share(self.p)
        if self.k < 0:
            raise UserError("sampler.k", f"is {self.k}", "give 0 (no top-k) or more")

    def filtered(self, logits_BV: jax.Array) -> jax.Array:
        logits_BV = _heat(logits_BV, self.temperature)
        if self.k:
            logits_BV = _top_k(logits_BV, self.k)
        if self.p == 1:  # rounding of a sum must not drop the tail
            return logits_BV
        sorted_BV, order_BV = jax.lax.top_k(logits_BV, logits_BV.shape[-1])
        mass_BV = jnp.cumsum(jax.nn.softmax(sorted_BV, axis=-1), axis=-1)
        before_BV = jnp.pad(mass_BV[:, :-1], ((0, 0), (1, 0)))
        return _keep(logits_BV, order_BV, before_BV < self.p)

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        return _draw(self.filtered(logits_BV), keys_B)


@dataclasses.dataclass(frozen=True)
class MinP:
    """Keeps tokens at least p times as probable as the most probable one (Nguyen et al. 2024)."""

    p: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        _check_share(self.p)

    def filtered(self, logits_BV: jax.Array) -> jax.Array:
        logits_BV = _heat(logits_BV, self.temperature)  # the largest is 0
        return jnp.where(logits_BV >= math.log(self.p), logits_BV, -jnp.inf)

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        return _draw(self.filtered(logits_BV), keys_B)


def penalise(logits_BV: jax.Array, seen_BV: jax.Array, penalty: jax.Array | float) -> jax.Array:
    """Logits of seen tokens over the penalty, negative ones times it; Keskar et al. 2019 §4.1.

    (Their formula divides all; dividing a negative logit would make its token likelier.) 1 changes
    nothing, more makes repetitions rarer, however often a token was seen.
    """
    penalised_BV = jnp.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    return jnp.where(seen_BV, penalised_BV, logits_BV)


def parse_sampler(text: str) -> Sampler:
    """Reads greedy | temperature:T | top_k:K[:T] | top_p:P[:T] | min_p:P[:T]; raises UserError."""
    kind, *parameters = text.split(":")
    if kind not in SAMPLERS:
        raise UserError("sampler", f"is {text!r}", f"choose from {', '.join(SAMPLERS)}")
    make, types = SAMPLERS[kind]
    required = min(1, len(types))
    if not required <= len(parameters) <= len(types):
        what = f"{text!r} has {len(parameters)} parameters"
        raise UserError("sampler", what, f"{kind} takes {required} to {len(types)}, after colons")
    values = [_number(text, *pair) for pair in zip(types, parameters, strict=False)]
    return make(*values)


SAMPLERS: dict[str, tuple[Callable[..., Sampler], tuple[type, ...]]] = {
    "greedy": (Greedy, ()),
    "temperature": (Temperature, (float,)),
    "top_k": (TopK, (int, float)),
    "top_p": (TopP, (float, float)),
    "min_p": (MinP, (float, float)),
}


def _number(text: str, kind: type, value: str) -> float:
    try:
        return kind(value)
    except ValueError as error:
        what = f"{text!r} has {value!r}, which is not of type {kind.__name__}"
        raise UserError("sampler", what, "mend the number") from error


def _check_temperature(temperature: float) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        mend = "give a number above 0; the limit 0 is the greedy sampler"
        raise UserError("sampler.temperature", f"is {temperature}", mend)


def _check_share(p: float) -> None:
    if not 0 < p <= 1:
        raise UserError("sampler.p", f"is {p}", "give a probability above 0 and up to 1")


def _heat(logits_BV: jax.Array, temperature: float) -> jax.Array:
    """Float32 logits over the temperature, shifted to a maximum of 0 so that nothing overflows."""
    logits_BV = logits_BV.astype(jnp.float32)
    top_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    return (logits_BV - top_B1) / max(temperature, 1e-30)


def _top_k(logits_BV: jax.Array, k: int) -> jax.Array:
    vocab_size = logits_BV.shape[-1]
    if k >= vocab_size:
        return logits_BV
    _, best_BK = jax.lax.top_k(logits_BV, k)
    return _keep(logits_BV, best_BK, jnp.ones(best_BK.shape, bool))


def _keep(logits_BV: jax.Array, ids_BK: jax.Array, keep_BK: jax.Array) -> jax.Array:
    """Sets to -inf all but the tokens of `ids_BK` whose `keep_BK` is true."""
    none_BV = jnp.zeros(logits_BV.shape, bool)
    keep_BV = jnp.put_along_axis(none_BV, ids_BK, keep_BK, axis=-1, inplace=False)
    return jnp.where(keep_BV, logits_BV, -jnp.inf)


def _draw(logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.categorical)(keys_B, logits_BV).astype(jnp.int32)
