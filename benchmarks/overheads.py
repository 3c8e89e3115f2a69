"""What a run does beside its steps: python -m benchmarks overheads, or
python -m benchmarks.overheads TEXT_FILE

Trains configs/text.py, on BPE tokens of the file or of this package's own code, in pieces of 24
steps: bare (one batch again and again, nothing kept), and as training does it (loader, hash chain,
metrics, and a checkpoint in the middle, awaited at the end). Pieces alternate; medians are printed.
"waiting for data" is the time in which the loop had no batch, "a batch, nothing read ahead" what
the loader needs for one in one thread.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from flax import nnx

import jaxformer
from configs import text
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

STEPS, PIECES = 24, 3


def main(rounds: int = PIECES, path: str = "") -> list[dict[str, Any]]:
    config: Any = text.get_config()
    config.data.path = path or str(Path(jaxformer.__file__).parent)
    if not path:
        config.data.update(source="folder", pattern="**/*.py")
    cfg = RunConfig.from_config_dict(config)
    with tempfile.TemporaryDirectory() as folder:
        data = open_data(cfg, folder)
        return measure(resolve(cfg, data), data, Path(folder), rounds)


def measure(cfg: RunConfig, data: Any, folder: Path, rounds: int) -> list[dict[str, Any]]:
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

    def full_piece() -> tuple[float, float, float]:
        nonlocal state, done
        began = time.perf_counter()
        waited = blocked = 0.0
        for n in range(STEPS):
            done += 1
            asked = time.perf_counter()
            fresh = next(loader)
            waited += time.perf_counter() - asked
            state, metrics = full(state, jax.device_put(fresh))
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
        return time.perf_counter() - began, waited, blocked

    def batches() -> float:
        began = time.perf_counter()
        for n in range(STEPS):
            loader.batch(n)
        return time.perf_counter() - began

    bare_piece()  # compiles
    full_piece()
    times = [(bare_piece(), batches(), *full_piece()) for _ in range(rounds)]
    for part in (loader, writer, saved):
        part.close()
    bare_s, batches_s, full_s, *parts = (
        statistics.median(column) for column in zip(*times, strict=True)
    )
    found = {
        "bare steps": (bare_s, ""),
        "with loader, chain, metrics, one save": (full_s, f"{full_s / bare_s - 1:+.1%}"),
        "of it waiting for data": (parts[0], f"{parts[0] / full_s:.1%}"),
        "of it blocked by the save": (parts[1], f"{parts[1] / full_s:.1%}"),
        "a batch, nothing read ahead": (batches_s, f"{batches_s / bare_s:.1%}"),
    }
    return [
        {"what": name, "ms a step": f"{1e3 * seconds / STEPS:.2f}", "share": share}
        for name, (seconds, share) in found.items()
    ]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: python -m benchmarks.overheads [TEXT_FILE]")
    print(markdown(main(path=sys.argv[1] if len(sys.argv) == 2 else "")))
