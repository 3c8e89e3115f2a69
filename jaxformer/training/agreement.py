"""What the processes of a run compare and decide together while it trains.

Whether to evaluate, save or skip an update follows from the step and from sums over all devices.
The wish to stop is one process's own: it travels in the batch, so that asking costs no message, and
all processes see it in the metrics of the same step.
"""

import hashlib
import json
import signal
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.config import RunConfig
from jaxformer.data.loader import Loader
from jaxformer.data.stream_loader import StreamLoader
from jaxformer.distributed import differences, gather, is_alone
from jaxformer.errors import TrainingFailed, UserError
from jaxformer.mesh import AXES


def with_stop(mesh: Mesh | None, batch: dict[str, jax.Array], name: str) -> dict[str, jax.Array]:
    """The batch with the number of the signal that this process was sent, where it is not alone.

    It is said by each device: processes may have rows in common.
    """
    if is_alone() or mesh is None:
        return batch
    number = signal.Signals[name].value if name else 0
    told = np.full(len(jax.local_devices()), number, np.int32)
    everyone = NamedSharding(mesh, PartitionSpec(AXES))
    return batch | {"stop": jax.make_array_from_process_local_data(everyone, told)}


def notice(step: int) -> str:
    """'SIGTERM' at the step at which all processes may stop for a notice that JAX was given.

    Signals are taken from JAX while a run trains (see distributed.joined), other notices of a
    cluster reach its preemption service only. To be asked at every step.
    """
    if is_alone() or not jax.config.values["jax_enable_preemption_service"]:
        return ""
    return "SIGTERM" if multihost_utils.reached_preemption_sync_point(step) else ""


def check_same_start(step: int, meta: dict[str, Any]) -> None:
    """Raises UserError in all processes where one begins another run than process 0."""
    values = {name: meta[name] for name in ("version", "tokenizer", "data")}
    values |= {"teacher": meta.get("teacher", ""), "config": _hash(meta["config"]), "step": step}
    for process, name, its, first in differences(gather(values)):
        raise UserError(
            f"process {process}",
            f"begins with {name} {its}, process 0 with {first}",
            "start all processes with the same command on the same files",
        )


def check_same_step(cfg: RunConfig, batches: Loader | StreamLoader, step: int) -> None:
    """Every train.check_every steps: raises TrainingFailed, naming the process that differs."""
    if is_alone() or not cfg.train.check_every or step % cfg.train.check_every:
        return
    key = jax.random.fold_in(jax.random.key(cfg.seed), step)
    values = {
        "the step": step,
        "its random keys": _hash(jax.random.key_data(key).tolist()),
        "the examples of its batch": _hash(batches.batch_ids(step - 1)),
    }
    found = differences(gather(values))
    if found:
        listed = "; ".join(f"process {process} differs in {name}" for process, name, _, _ in found)
        raise TrainingFailed(f"step {step}: the processes have come apart: {listed}")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
