"""What exactness costs: python benchmarks/overheads.py TEXT_FILE

Trains the Shakespeare config in pieces of 50 steps: bare (one batch again and again, nothing kept),
and as training does it (loader, hash chain, metrics, and a checkpoint in the middle, awaited at the
end). Pieces alternate; the medians of 7 are printed. Quiet machines only: nothing here is a test.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from configs import shakespeare_char
from jaxformer.checkpoint import Checkpoints
from jaxformer.config import RunConfig
from jaxformer.data import open_data, resolve
from jaxformer.data.loader import Loader
from jaxformer.evaluation.report import markdown
from jaxformer.models import build, init
from jaxformer.training.chain import Chain, as_hex, digest
from jaxformer.training.clock import Clock
from jaxformer.training.log import Log
from jaxformer.training.metrics import Meter, MetricsWriter
from jaxformer.training.optim import make_optimizer
from jaxformer.training.state import abstract_state, initialise, shardings_of
from jaxformer.training.step import make_train_step

STEPS, PIECES = 50, 7


def main(text: str) -> None:
    config: Any = shakespeare_char.get_config()
    config.data.path = text
    cfg = RunConfig.from_config_dict(config)
    with tempfile.TemporaryDirectory() as folder:
        data = open_data(cfg, folder)
        print(markdown(measure(resolve(cfg, data), data, Path(folder))))


def measure(cfg: RunConfig, data: Any, folder: Path) -> list[dict[str, Any]]:
    graphdef, _ = nnx.split(build(cfg.model, cfg.compute_dtype))
    tx, schedule = make_optimizer(cfg)
    make_params = lambda: init(cfg.model, jax.random.key(cfg.seed))  # noqa: E731
    abstract = abstract_state(make_params, tx, None)
    step = make_train_step(graphdef, tx, schedule, cfg)
    placed = shardings_of(abstract)
    full = jax.jit(step, donate_argnums=0, out_shardings=(placed, None))

    def without_digest(state: Any, batch: Any) -> tuple[Any, Any]:
        state, metrics = step(state, batch)
        return state, metrics["loss"]  # XLA drops what is not asked for

    bare = jax.jit(without_digest, donate_argnums=0, out_shardings=(placed, None))
    parameters = jax.jit(digest)
    loader = Loader(data.train, cfg.train.batch_size, cfg.seed)
    writer, saved = MetricsWriter(folder), Checkpoints(folder, keep_latest=2)
    log = Log(cfg, writer, Meter(1.0, 1.0), Chain(), Clock(), None)
    batch = jax.device_put(loader.batch(0))
    state, alone = (initialise(make_params, tx, abstract) for _ in range(2))
    done = 0

    def bare_piece() -> float:
        nonlocal alone
        began, before = time.perf_counter(), None
        for _ in range(STEPS):
            alone, loss = bare(alone, batch)
            _ = before is not None and before.item()
            before = loss
        jax.block_until_ready(alone)
        return time.perf_counter() - began

    def full_piece() -> tuple[float, float]:
        nonlocal state, done
        began = time.perf_counter()
        blocked = 0.0
        for n in range(STEPS):
            done += 1
            state, metrics = full(state, jax.device_put(next(loader)))
            log.step(done, metrics)
            if n == STEPS // 2:
                log.flush()
                jax.block_until_ready(state)
                asked = time.perf_counter()
                meta = {"chain": log.chain.links, "parameters": as_hex(parameters(state.params))}
                saved.save(done, state, meta)
                blocked = time.perf_counter() - asked
        log.flush()
        saved.wait()
        return time.perf_counter() - began, blocked

    bare_piece()  # compiles
    full_piece()
    times = [(bare_piece(), *full_piece()) for _ in range(PIECES)]
    for part in (loader, writer, saved):
        part.close()
    bare_s, full_s, blocked_s = (statistics.median(column) for column in zip(*times, strict=True))
    share = lambda seconds: f"{seconds / full_s:.1%}"  # noqa: E731
    return [
        {"what": "bare steps", f"seconds for {STEPS} steps": round(bare_s, 4), "share": ""},
        {
            "what": "with loader, chain, metrics, one save",
            f"seconds for {STEPS} steps": round(full_s, 4),
            "share": f"+{full_s / bare_s - 1:.1%}",
        },
        {
            "what": "of it blocked by the save",
            f"seconds for {STEPS} steps": round(blocked_s, 4),
            "share": share(blocked_s),
        },
    ]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/overheads.py TEXT_FILE")
    main(sys.argv[1])
