"""The agreement language: a verb agrees in number with its subject across k modifiers.

    <s> the [adjective] NOUN modifier^k VERB the NOUN </s>
    modifier = PREPOSITION the [adjective] NOUN | that VERB the NOUN

The verb of the clause and every relative verb agree with the first noun; all other nouns take
either number. A modifier has at most four tokens, so a sentence has at most 8 + 4k.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.tokenizers import SPECIAL

NOUNS = (
    *(("boy", "boys"), ("girl", "girls"), ("dog", "dogs"), ("cat", "cats"), ("bird", "birds")),
    *(("tree", "trees"), ("teacher", "teachers"), ("farmer", "farmers"), ("child", "children")),
    *(("woman", "women"), ("man", "men"), ("horse", "horses"), ("car", "cars")),
    *(("king", "kings"), ("mouse", "mice")),
)
ADJECTIVES = ("angry", "big", "happy", "little", "old", "quiet", "red", "sad", "tall", "young")
PREPOSITIONS = ("above", "behind", "beside", "beyond", "by", "near", "under", "with")
VERBS = (  # singular, plural
    *(("sees", "see"), ("likes", "like"), ("knows", "know"), ("helps", "help")),
    *(("hears", "hear"), ("follows", "follow"), ("finds", "find"), ("admires", "admire")),
    *(("chases", "chase"), ("watches", "watch"), ("loves", "love"), ("fears", "fear")),
    ("meets", "meet"),
)
PAD, BOS, EOS = range(3)
THE, THAT = 3, 4
NOUN = 5  # noun i in number p (0 singular, 1 plural) is NOUN + 2i + p
ADJECTIVE = NOUN + 2 * len(NOUNS)
PREPOSITION = ADJECTIVE + len(ADJECTIVES)
VERB = PREPOSITION + len(PREPOSITIONS)  # as nouns
WORDS = ["the", "that", *sum(NOUNS, ()), *ADJECTIVES, *PREPOSITIONS, *sum(VERBS, ())]
VOCAB_SIZE = len(SPECIAL) + len(WORDS)  # 79

P_ADJECTIVE = 0.5
P_RELATIVE = 0.5


class Sentence(NamedTuple):
    """One sentence (or, under vmap, many: then every field has a leading axis)."""

    tokens: jax.Array  # int32[8 + 4 max_modifiers], <s> … </s>, then 0
    length: jax.Array  # int32, tokens
    verb: jax.Array  # int32, index of the verb of the clause: the length of the prefix
    plural: jax.Array  # int32, number of the subject: 0 singular, 1 plural


def sample(key: jax.Array, num_modifiers: jax.Array | int, max_modifiers: int) -> Sentence:
    """Draws one sentence; `num_modifiers` may be traced, up to the static `max_modifiers`.

    The sentence is the same for every `max_modifiers`, only the padding differs (element i of a
    draw does not depend on how many are drawn).
    """
    u = jax.random.uniform(key, (6 + 6 * max_modifiers,))
    plural = (u[0] < 0.5).astype(jnp.int32)
    modifiers, filled = jax.vmap(functools.partial(_modifier, plural=plural))(
        u[6:].reshape(max_modifiers, 6)
    )
    filled &= jnp.arange(max_modifiers)[:, None] < num_modifiers
    adjective = ADJECTIVE + _choose(u[1], len(ADJECTIVES))
    subject = NOUN + 2 * _choose(u[2], len(NOUNS)) + plural
    verb = VERB + 2 * _choose(u[3], len(VERBS)) + plural
    object_ = NOUN + _choose(u[4], 2 * len(NOUNS))
    head = _ints(BOS, THE, adjective, subject)
    tail = _ints(verb, THE, object_, EOS)
    slots = jnp.concatenate([head, modifiers.reshape(-1), tail])
    head_filled = jnp.ones(4, bool).at[2].set(u[5] < P_ADJECTIVE)
    filled = jnp.concatenate([head_filled, filled.reshape(-1), jnp.ones(4, bool)])
    place = jnp.where(filled, jnp.cumsum(filled) - 1, len(slots))
    tokens = jnp.zeros(len(slots), jnp.int32).at[place].set(slots, mode="drop")
    length = filled.sum().astype(jnp.int32)
    return Sentence(tokens, length, length - 4, plural)


def _modifier(u: jax.Array, plural: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Four slots and which of them are filled, from six uniform draws."""
    noun = NOUN + _choose(u[0], 2 * len(NOUNS))
    relative_verb = VERB + 2 * _choose(u[1], len(VERBS)) + plural
    preposition = PREPOSITION + _choose(u[2], len(PREPOSITIONS))
    adjective = ADJECTIVE + _choose(u[3], len(ADJECTIVES))
    is_clause = u[4] < P_RELATIVE
    clause = _ints(THAT, relative_verb, THE, noun)
    phrase = _ints(preposition, THE, adjective, noun)
    filled = jnp.ones(4, bool).at[2].set(is_clause | (u[5] < P_ADJECTIVE))
    return jnp.where(is_clause, clause, phrase), filled


def _choose(uniform: jax.Array, count: int) -> jax.Array:
    return jnp.floor(uniform * count).astype(jnp.int32)


def _ints(*values: jax.Array | int) -> jax.Array:
    return jnp.stack([jnp.asarray(v, jnp.int32) for v in values])


def check(tokens: np.ndarray) -> str:
    """Parses one sentence; '' if it is of the language, otherwise what is wrong with it.

    Written by the grammar in words, apart from the sampler and its numbering.
    """
    words = [*SPECIAL, *WORDS]
    rest = [words[t] for t in np.asarray(tokens).tolist()]
    while rest and rest[-1] == SPECIAL[PAD]:
        rest.pop()
    if rest[:1] != ["<s>"] or rest[-1:] != ["</s>"]:
        return "does not run from <s> to </s>"
    rest = rest[1:-1]
    number_of = {form: n for pair in NOUNS for n, form in enumerate(pair)}
    verb_number = {form: n for pair in VERBS for n, form in enumerate(pair)}

    def noun_phrase(allow_adjective: bool) -> int | None:
        if rest[:1] != ["the"]:
            return None
        rest.pop(0)
        if allow_adjective and rest and rest[0] in ADJECTIVES:
            rest.pop(0)
        return number_of.get(rest.pop(0)) if rest else None

    subject = noun_phrase(True)
    if subject is None:
        return "has no subject"
    while rest and (rest[0] in PREPOSITIONS or rest[0] == "that"):
        if rest.pop(0) != "that":
            if noun_phrase(True) is None:
                return "has a preposition without a noun"
        elif not rest or verb_number.get(rest.pop(0)) != subject:
            return "has a relative verb that does not agree"
        elif noun_phrase(False) is None:
            return "has a relative clause without an object"
    if not rest or verb_number.get(rest.pop(0)) != subject:
        return "has a verb that does not agree"
    if noun_phrase(False) is None:
        return "has no object"
    return "goes on after its object" if rest else ""
