"""What test_distributed.py runs in each of two processes: several runs one after another.

Arguments: folder, port, process id. Writes to FOLDER/ends-ID.json how each run ended here.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from jaxformer.data.loader import Loader, evaluation_batches
from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.distributed import Group, first_alone, gather, is_first, joined, together
from jaxformer.errors import Preempted, TrainingFailed, UserError
from jaxformer.evaluation.evaluators import EVALUATORS, evaluate_batches
from jaxformer.generation import Greedy, generate
from jaxformer.run import load
from jaxformer.training.agreement import check_same_step
from jaxformer.training.loop import train
from tests.training import tiny

CHANGES = {"mesh__data": -1, "train__check_every": 3, **tiny.DROPOUT}
# The two devices share all rows: heads, d_ff and 11 tokens are theirs by halves.
SPREAD = {**tiny.DROPOUT, "mesh__tensor": 2, "train__num_steps": 4}
WORDS = word_tokenizer("abcdefg")


class Terminate:
    """Sends this process a signal at a step."""

    def __init__(self, step):
        self.step = step

    def update(self, step, metrics):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


ENDS = {}


def told(name, work):
    began = time.monotonic()
    try:
        ENDS[name] = work()
    except (UserError, TrainingFailed, Preempted, OSError) as error:
        ENDS[name] = f"{type(error).__name__}: {error}"
    print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


def of_process(process, error):
    with together():
        if jax.process_index() == process:
            raise error


def use(run):
    """What it continues a prompt with, and its loss."""
    prompt = np.array([[3, 4]]), np.array([2])
    out = generate(
        run.model, *prompt, max_new_tokens=4, sampler=Greedy(), key=jax.random.key(0), eos_id=-1
    )
    graphdef, params = nnx.split(run.model)
    rows = evaluation_batches(tiny.Rows(5), 3)
    totals = evaluate_batches((EVALUATORS["perplexity"],), graphdef, nnx.to_pure_dict(params), rows)
    return out.tokens.tolist(), totals["loss"].mean


def main(folder: Path, process: int) -> None:
    cfg, data = tiny.config(**CHANGES), tiny.data()
    told("gather", lambda: gather({"process": process}))
    order = folder / "order"

    def write():
        order.write_text(order.read_text() + str(process) if order.exists() else str(process))

    told("first alone", lambda: first_alone(write))
    told("bad input", lambda: of_process(1, UserError("seed", "is -1", "give more")))
    told("failure", lambda: of_process(0, OSError("disk full")))
    asked = Terminate(5) if not is_first() else None
    told("asked", lambda: train(cfg, data, folder / "run", progress=asked))
    told("resumed", lambda: train(cfg, data, folder / "run"))
    multihost_utils.reached_preemption_sync_point = lambda step: step == 7
    told("noticed", lambda: train(cfg, data, folder / "noticed"))
    other = tiny.data()
    other.train = tiny.Rows(fingerprint="rows" if is_first() else "other rows")
    told("other data", lambda: train(cfg, other, folder / "other"))
    other.train = tiny.Rows(size=40 if is_first() else 80)
    batches = Loader(other.train, cfg.train.batch_size, cfg.seed)
    told("apart", lambda: check_same_step(cfg, batches, 3))
    told("not compared", lambda: check_same_step(cfg, batches, 4))
    small = tiny.config(**(CHANGES | {"mesh__data": 1}))
    told("no mesh", lambda: train(small, data, folder / "small"))
    words = tiny.data()
    words.tokenizer = WORDS
    told("spread", lambda: train(tiny.config(**SPREAD), words, folder / "spread"))
    if is_first():
        WORDS.save(folder / "spread" / "tokenizer.json")
    gather("saved")
    told("loaded", lambda: use(load(folder / "spread", mesh="run")))
    (folder / f"ends-{process}.json").write_text(json.dumps(ENDS))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 1)
    here = int(sys.argv[3])
    with joined(Group(f"127.0.0.1:{sys.argv[2]}", 2, here)):
        main(Path(sys.argv[1]), here)
