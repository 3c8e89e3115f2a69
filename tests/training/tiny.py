"""A run small enough to train in a second: one layer, width 8, random rows."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from configs import base
from jaxformer.config import RunConfig
from jaxformer.models import build, init
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state, initialise, shardings_of
from jaxformer.training.step import make_train_step

LENGTH, VOCAB = 8, 11


def config(**changes: Any) -> RunConfig:
    """The tiny config; a change names its field by path, with '__' for '.'."""
    c = base.get_config()
    c.model.update(num_layers=1, d_model=8, num_heads=2, max_length=LENGTH, vocab_size=VOCAB)
    c.data.length = LENGTH
    c.train.update(num_epochs=0.0, num_steps=12, batch_size=8, log_every=2, eval_every=4)
    c.train.checkpoint_every = 4
    c.eval.batch_size = 8
    c.schedule.update(warmup_steps=2, decay_steps=12)
    c.mesh.update(data=1, fsdp=1)
    for path, value in changes.items():
        *parents, name = path.split("__")
        section = c
        for parent in parents:
            section = section[parent]
        with section.ignore_type():
            section[name] = value
    return RunConfig.from_config_dict(c)


DROPOUT = {f"model__dropout__{n}": 0.3 for n in ("embedding", "attention", "feed_forward")} | {
    "model__dropout__residual": 0.3
}

SEQ2SEQ = {
    "objective__kind": "seq2seq",
    "model__architecture": "encoder_decoder",
    "data__source": "text",
    "data__path": "a.en",
    "data__target_path": "a.de",
}


@dataclasses.dataclass(frozen=True)
class Rows:
    """Random rows with ragged padding and uneven weights, a pure function of (epoch, index)."""

    size: int = 40
    weight: float = 1.0
    num_tokens: int = 0
    num_bytes: int = 0
    fingerprint: str = "rows"

    def __len__(self) -> int:
        return self.size

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([epoch, index])
        tokens = rng.integers(3, VOCAB, LENGTH + 1).astype(np.int32)
        real = np.arange(LENGTH) < rng.integers(1, LENGTH + 1)
        return {
            "tokens": np.where(real, tokens[:-1], 0).astype(np.int32),
            "targets": np.where(real, tokens[1:], 0).astype(np.int32),
            "segment_ids": real.astype(np.int32),
            "positions": np.where(real, np.arange(LENGTH), 0).astype(np.int32),
            "weights": np.where(real, self.weight, 0.0).astype(np.float32),
        }


def batch(step: int = 0, size: int = 8) -> dict[str, np.ndarray]:
    rows = [Rows().row(step, index) for index in range(size)]
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return stacked | {"rows": np.arange(size, dtype=np.int32)}


def data() -> Any:
    tokenizer = SimpleNamespace(fingerprint="tiny", vocab_size=VOCAB)
    return SimpleNamespace(tokenizer=tokenizer, train=Rows(), validation=Rows(11), task=None)


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything a step needs, built as the loop builds it."""

    state: Any
    step: Any
    abstract: Any


@functools.cache
def program(
    cfg: RunConfig, mesh: Any = None, *, sgd_norm: float = 0.0, rate: float | None = None
) -> Program:
    """The fresh state and the jitted step, which donates nothing.

    `sgd_norm` takes plain clipped SGD for AdamW, `rate` a constant for the schedule.
    """
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    tx, schedule = make_optimizer(cfg)
    if sgd_norm:
        tx = optax.chain(optax.clip_by_global_norm(sgd_norm), optax.scale(-1.0))
    if rate is not None:
        schedule = optax.constant_schedule(rate)
    make_params = lambda: init(cfg.model, jax.random.key(cfg.seed))  # noqa: E731
    abstract = abstract_state(make_params, tx, mesh, ema=cfg.train.ema.decay > 0)
    step = jax.jit(
        make_train_step(graphdef, tx, schedule, cfg),
        out_shardings=(shardings_of(abstract), None),
        compiler_options={"xla_backend_optimization_level": "0"},  # compiles in half the time
    )
    return Program(initialise(make_params, tx, abstract), step, abstract)


def keep_rows(batch: dict[str, np.ndarray], kept: np.ndarray) -> dict[str, np.ndarray]:
    """The batch with all rows but the kept ones (bool[B]) turned into padding."""
    return {name: np.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, 0).astype(x.dtype)
            for name, x in batch.items()}  # fmt: skip
