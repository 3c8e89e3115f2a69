"""The order of an epoch as a pure function of (seed, epoch, place), by random access."""

import functools

import grain
import numpy as np

ROUNDS = 4  # of grain's block cipher


def shuffled(place: int, count: int, seed: int, epoch: int) -> int:
    """The row of 0 … count - 1 that has this place in an epoch."""
    return grain.experimental.index_shuffle(
        place, max_index=count - 1, seed=draw_key(seed, epoch), rounds=ROUNDS
    )


@functools.lru_cache(maxsize=256)
def draw_key(*parts: int) -> int:
    """32 bits drawn from some numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def draw_permutation(count: int, *key: int) -> np.ndarray:
    """int64[count], from a key of two numbers.

    Raw Philox words are the same in every version of numpy; its permutations need not be.
    """
    words = np.random.Philox(key=list(key)).random_raw(count)
    return np.argsort(words, kind="stable")
