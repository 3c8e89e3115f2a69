"""The agreement task: rows to train on and questions to test with, all a function of the seed."""

import dataclasses
import functools

import jax
import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.objectives import causal_lm
from jaxformer.data.tasks import grammar
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError

NUM_VALIDATION = 1000
TRAIN, VALIDATION, TEST = range(3)  # streams of random numbers
CHUNK = 1024  # sentences drawn by one call, so that any number needs one compilation
WIDTH = 4  # … and the number of modifiers it has room for is a multiple of this
MAX_ROUNDS = 100  # of drawing again what is already a training sentence


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Whole sentences on the host, <s> … </s>, right-padded with 0."""

    tokens_BL: np.ndarray  # int32[B, 8 + 4 · most modifiers]
    lengths_B: np.ndarray
    verbs_B: np.ndarray  # index of the verb of the clause: the length of the prefix before it
    plural_B: np.ndarray  # number of the subject: 0 singular, 1 plural

    def __len__(self) -> int:
        return len(self.lengths_B)

    def replace(self, index_B: np.ndarray, other: "Sentences") -> "Sentences":
        """Takes the rows where `index_B` is true from `other`."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)]
        return Sentences(
            *(np.where(index_B.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in pairs)
        )


@dataclasses.dataclass(frozen=True)
class Examples:
    """Test sentences with the question they put: which form of the verb follows the prefix?"""

    sentences: Sentences
    prefixes_BP: np.ndarray  # <s> … last token before the verb, right-padded with 0
    prefix_lengths_B: np.ndarray
    correct_B: np.ndarray  # id of the verb of the sentence
    wrong_B: np.ndarray  # id of the same verb in the other number


class SentenceRows:
    """One sentence a row of `length` inputs, padded; every epoch has the same rows."""

    num_bytes = 0

    def __init__(self, sentences: Sentences, length: int):
        self.sentences = sentences
        self.num_tokens = int(np.sum(sentences.lengths_B - 1))
        hashes = sentence_hashes(sentences.tokens_BL).tolist()
        self.fingerprint = fingerprint("sentences", length, hashes)
        tokens_BL = sentences.tokens_BL[:, : length + 1]
        tokens_BL = np.pad(tokens_BL, ((0, 0), (0, length + 1 - tokens_BL.shape[1])))
        segment_ids_BL = np.arange(length + 1) < sentences.lengths_B[:, None]
        self._rows = causal_lm(tokens_BL, segment_ids_BL.astype(np.int32))

    def __len__(self) -> int:
        return len(self.sentences)

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        del epoch
        return {name: rows_BL[index] for name, rows_BL in self._rows.items()}


class Agreement:
    """Training and validation rows of a run, and test sentences of any number of modifiers.

    Training sentences are a function of the seed alone, with 0 … max_modifiers modifiers.
    Validation sentences have the same distribution; neither they nor test sentences are ever
    training sentences (whole sentences compared).
    """

    name = "agreement"

    def __init__(self, cfg: RunConfig):
        self._most = cfg.data.agreement.max_modifiers
        self._weights = cfg.data.agreement.modifier_weights
        need = 8 + 4 * self._most
        if cfg.data.length < need - 1:
            raise UserError(
                "data.length",
                f"{cfg.data.length} is too short for data.agreement.max_modifiers = {self._most}: "
                f"sentences have up to 8 + 4 · {self._most} = {need} tokens, "
                f"which is {need - 1} inputs",
                f"raise it to {need - 1}",
            )
        modifiers = self._modifiers(cfg.data_seed, TRAIN, cfg.data.agreement.num_examples)
        train = _draw(cfg.data_seed, TRAIN, 0, modifiers)
        self._taken = np.unique(sentence_hashes(train.tokens_BL))
        modifiers = self._modifiers(cfg.data_seed, VALIDATION, NUM_VALIDATION)
        held_out = self._held_out(cfg.data_seed, VALIDATION, modifiers)
        self.train = SentenceRows(train, cfg.data.length)
        self.validation = SentenceRows(held_out, cfg.data.length)

    def evaluation(self, num_modifiers: int, num_examples: int, seed: int) -> Examples:
        """Test sentences with exactly `num_modifiers` modifiers, none of them in training."""
        modifiers = np.full(num_examples, num_modifiers, np.int32)
        sentences = self._held_out(seed, TEST + num_modifiers, modifiers)
        tokens_BL, verbs_B = sentences.tokens_BL, sentences.verbs_B
        correct_B = np.take_along_axis(tokens_BL, verbs_B[:, None], axis=1)[:, 0]
        before_BP = np.arange(tokens_BL.shape[1] - 4) < verbs_B[:, None]
        return Examples(
            sentences,
            prefixes_BP=np.where(before_BP, tokens_BL[:, :-4], grammar.PAD),
            prefix_lengths_B=verbs_B,
            correct_B=correct_B,
            wrong_B=((correct_B - grammar.VERB) ^ 1) + grammar.VERB,
        )

    def rows(self, examples: Examples) -> SentenceRows:
        """Test sentences as rows of 7 + 4k inputs, for perplexity and token accuracy."""
        return SentenceRows(examples.sentences, examples.sentences.tokens_BL.shape[1] - 1)

    def _modifiers(self, seed: int, stream: int, count: int) -> np.ndarray:
        words = np.random.Philox(key=[seed, stream]).random_raw(count)
        if self._weights:
            shares = np.cumsum(self._weights) / np.sum(self._weights)
            return np.searchsorted(shares[:-1], words / 2**64, side="right").astype(np.int32)
        return (words % np.uint64(self._most + 1)).astype(np.int32)

    def _held_out(self, seed: int, stream: int, modifiers_B: np.ndarray) -> Sentences:
        """Draws each sentence again, with its number of modifiers, until it is no training one."""
        result = _draw(seed, stream, 0, modifiers_B)
        for attempt in range(1, MAX_ROUNDS):
            taken = np.isin(sentence_hashes(result.tokens_BL), self._taken)
            if not taken.any():
                return result
            result = result.replace(taken, _draw(seed, stream, attempt, modifiers_B))
        raise UserError(
            "data.agreement.num_examples",
            "leaves too few sentences out of training to test on",
            "lower it or raise data.agreement.max_modifiers",
        )


def agreement_tokenizer(cfg: RunConfig | None = None) -> Tokenizer:
    del cfg  # of other tasks the words are options
    return word_tokenizer(grammar.WORDS)


def sentence_hashes(tokens_BL: np.ndarray) -> np.ndarray:
    """uint64[B] that identifies a sentence whatever its padding."""
    powers = [pow(0x9E3779B97F4A7C15, i, 2**64) for i in range(tokens_BL.shape[1])]
    return (tokens_BL.astype(np.uint64) * np.array(powers, np.uint64)).sum(axis=1)


@functools.partial(jax.jit, static_argnames="room")
def _draw_chunk(
    numbers: jax.Array, first: jax.Array, modifiers_B: jax.Array, room: int
) -> grammar.Sentence:
    """Sentence i of (seed, stream, attempt) is drawn by a key of its own."""
    key = jax.random.key(numbers[0])
    for number in (numbers[1], numbers[2]):
        key = jax.random.fold_in(key, number)

    def one(offset: jax.Array, num_modifiers: jax.Array) -> grammar.Sentence:
        return grammar.sample(jax.random.fold_in(key, first + offset), num_modifiers, room)

    return jax.vmap(one)(jax.numpy.arange(CHUNK), modifiers_B)


def _draw(seed: int, stream: int, attempt: int, modifiers_B: np.ndarray) -> Sentences:
    """Sentences with the given numbers of modifiers, in arrays as wide as the most may need."""
    most = int(modifiers_B.max(initial=0))
    room = -(-max(most, 1) // WIDTH) * WIDTH
    padded = np.zeros(-(-len(modifiers_B) // CHUNK) * CHUNK, np.int32)
    padded[: len(modifiers_B)] = modifiers_B
    numbers = np.array([seed, stream, attempt], np.uint32)
    chunks = [
        _draw_chunk(numbers, np.uint32(i), padded[i : i + CHUNK], room)
        for i in range(0, len(padded), CHUNK)
    ]
    parts = [np.concatenate([np.asarray(c) for c in field]) for field in zip(*chunks, strict=True)]
    tokens, *rest = (part[: len(modifiers_B)] for part in parts)
    return Sentences(tokens[:, : 8 + 4 * most], *rest)
