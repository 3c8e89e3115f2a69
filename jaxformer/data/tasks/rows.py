"""The host's side of a task: rows for the loader and for validation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.tasks import make_sampler, make_task
from jaxformer.data.tasks.sampler import Sampler, sample_rows
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.data.vocabulary import word_tokenizer

NUM_VALIDATION = 1000
ENDLESS = 2**31  # rows of an epoch where there is no end
SEPARATOR = "<sep>"

Rows = dict[str, np.ndarray]


class TaskRows:
    """Training rows: those that `sample_batch` draws, whichever of them is asked for."""

    num_bytes = 0

    def __init__(self, sampler: Sampler, seed: int):
        self.sampler, self.seed = sampler, seed
        self.fingerprint = fingerprint("task", repr(sampler), seed)
        self.num_tokens = 0  # not known: lengths are drawn

    def __len__(self) -> int:
        return self.sampler.num_examples or ENDLESS

    @property
    def is_endless(self) -> bool:
        return not self.sampler.num_examples

    def batch(self, start: int, count: int) -> Rows:
        """Examples `start` … start + count - 1, counted over all epochs."""
        rows = _sample_rows(self.sampler, count, np.uint32(self.seed), np.uint32(start % 2**32))
        return {name: np.asarray(array) for name, array in rows.items()}

    def row(self, epoch: int, index: int) -> Rows:
        rows = self.batch(epoch * len(self) + index, 1)
        return {name: array[0] for name, array in rows.items() if name != "rows"}


class HeldOutRows:
    """Validation rows, with prompts that training never has where a length has enough of them."""

    num_bytes = 0

    def __init__(self, sampler: Sampler, seed: int):
        self._sampler, self._seed = sampler, seed
        self.fingerprint = fingerprint("held out", repr(sampler), seed)

    def __len__(self) -> int:
        return NUM_VALIDATION

    @functools.cached_property
    def num_tokens(self) -> int:
        return int(self._rows["weights"].sum())

    def row(self, epoch: int, index: int) -> Rows:
        del epoch
        return {name: array[index] for name, array in self._rows.items()}

    @functools.cached_property
    def _rows(self) -> Rows:
        rows = _sample_validation(self._sampler, np.uint32(self._seed))
        return {name: np.asarray(array) for name, array in rows.items()}


class SampledTask:
    """A task of `data.task`: its rows of a run, and its sampler for tests of any length."""

    def __init__(self, cfg: RunConfig):
        self.sampler = make_sampler(cfg)
        self.train = TaskRows(self.sampler, cfg.data_seed)
        self.validation = HeldOutRows(self.sampler, cfg.data_seed)


def task_tokenizer(cfg: RunConfig) -> Tokenizer:
    return word_tokenizer((SEPARATOR, *make_task(cfg.data.task).words))


_sample_rows = jax.jit(sample_rows, static_argnums=(0, 1))


@functools.partial(jax.jit, static_argnums=0)
def _sample_validation(sampler: Sampler, seed: jax.Array) -> dict[str, jax.Array]:
    numbers = jnp.arange(NUM_VALIDATION, dtype=jnp.uint32)
    return jax.vmap(sampler.validation_row, (None, 0))(seed, numbers)
