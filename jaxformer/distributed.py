"""Several processes, one run: how they find each other, and how they decide as one.

All processes run the same program on a shared file system. Whatever changes what they do next is
decided once: an error in one of them becomes an error in all (`together`), what they must have in
common is compared (`check_same`), and process 0 alone writes what is written once.
"""

import contextlib
import dataclasses
import glob
import importlib.util
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.errors import TrainingFailed, UserError

VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
MESSAGE_BYTES = 2048  # of what a process tells the others
SHUTDOWN_SECONDS = 30  # a process that fails waits this long for the others, then leaves
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Group:
    """Who belongs to a run; JAX asks the cluster (TPU, SLURM, Open MPI) for what is None."""

    coordinator: str | None = None  # host:port of process 0
    num_processes: int | None = None
    process_id: int | None = None


def find_group(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    environ: Mapping[str, str],
) -> Group | None:
    """The group that flags (None where not given) and environment name; None for one process.

    Raises UserError where they contradict each other or leave something open.
    """
    flags = {
        "coordinator": coordinator or None,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    found = {name: _given(name, value, environ) for name, value in flags.items()}
    group = Group(found["coordinator"], found["num_processes"], found["process_id"])
    alone = group.num_processes == 1 and not group.process_id
    if alone and group.coordinator is None:
        return None
    cluster = is_cluster(environ)
    if group == Group():
        if not cluster and _is_outside_srun(environ):
            tasks = environ["SLURM_NTASKS"]
            line = f"warning: SLURM_NTASKS is {tasks} and srun did not start this: it runs alone"
            print(line, file=sys.stderr, flush=True)
        return group if cluster else None
    missing = [name for name, value in found.items() if value is None]
    if missing and not cluster:
        given = next(name for name, value in found.items() if value is not None)
        what = f"is missing while --{given} is given"
        mend = "several processes need --coordinator=HOST:PORT, --num_processes and --process_id"
        raise UserError(f"--{missing[0]}", what, mend)
    port = re.fullmatch(r"\S+:(\d{1,5})", group.coordinator or "")
    if group.coordinator and not (port and 0 < int(port[1]) < 2**16):
        what, mend = f"is {group.coordinator!r}", "give the HOST:PORT of process 0"
        raise UserError("--coordinator", what, mend)
    size, place = group.num_processes, group.process_id
    if size is not None and size < 1:
        raise UserError("--num_processes", f"is {size}", "give 1 or more")
    tasks = environ.get("SLURM_NTASKS") if "SLURM_STEP_NODELIST" in environ else None
    if size is not None and tasks not in (None, str(size)):
        raise UserError("--num_processes", f"is {size} but SLURM_NTASKS is {tasks}", "leave it out")
    if place is not None and (place < 0 or (size is not None and place >= size)):
        mend = f"give 0 to {size - 1}" if size else "give 0 or more"
        raise UserError("--process_id", f"is {place} of {size or '?'} processes", mend)
    return group


def _given(name: str, flag: Any, environ: Mapping[str, str]) -> Any:
    """A setting from its flag or its variable; None where neither is there."""
    variable = VARIABLES[name]
    text = environ.get(variable, "")
    if not text:
        return flag
    if name != "coordinator" and not text.isdigit():
        raise UserError(variable, f"is {text!r}", "set it to a whole number or remove it")
    value = text if name == "coordinator" else int(text)
    if flag is not None and flag != value:
        raise UserError(f"--{name}", f"is {flag} but {variable} is {value}", "give one of them")
    return value


def _is_outside_srun(environ: Mapping[str, str]) -> bool:
    """Whether this is the script of a SLURM job of several tasks, which runs once."""
    tasks = environ.get("SLURM_NTASKS", "")
    return tasks.isdigit() and int(tasks) > 1 and "SLURM_STEP_NODELIST" not in environ


def is_cluster(environ: Mapping[str, str]) -> bool:
    """Whether a launcher that JAX knows started several processes, or this is a TPU machine."""

    def several(name: str) -> bool:
        return environ.get(name, "").isdigit() and int(environ[name]) > 1

    slurm = "SLURM_STEP_NODELIST" in environ and "SLURM_PROCID" in environ
    if (slurm and several("SLURM_NTASKS")) or several("OMPI_COMM_WORLD_SIZE"):
        return True
    if environ.get("JAX_PLATFORMS", "tpu").split(",")[0] not in ("tpu", ""):
        return False
    chips = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and importlib.util.find_spec("libtpu") is not None


@contextlib.contextmanager
def joined(group: Group | None) -> Iterator[None]:
    """Within, this process is one of the group; to be entered before JAX touches a device."""
    if group is None or jax.distributed.is_initialized():
        yield
        return
    try:
        jax.distributed.initialize(
            group.coordinator,
            group.num_processes,
            group.process_id,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        mend = "start all processes with the same --coordinator and --num_processes"
        where = f"--coordinator {group.coordinator or ''}".strip()
        raise UserError(where, f"the processes do not find each other ({reason})", mend)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # JAX swallows it; training has its own way
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the others may be gone: the first error counts
            jax.distributed.shutdown()
        raise
    jax.distributed.shutdown()


def is_first() -> bool:
    """Whether this process writes what a run writes once."""
    return jax.process_index() == 0


def is_alone() -> bool:
    return jax.process_count() == 1


def say(line: str) -> None:
    """A line on stderr, of several processes by one."""
    if is_first():
        print(line, file=sys.stderr, flush=True)


def gather(value: Any) -> list[Any]:
    """What each process gave, in their order: a small JSON value. All must call it."""
    if is_alone():
        return [value]
    text = json.dumps(value, ensure_ascii=False).encode()
    if len(text) > MESSAGE_BYTES:
        raise ValueError(f"a message of {len(text)} bytes: {text[:80]!r}…")
    padded = np.zeros(MESSAGE_BYTES, np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row).rstrip(b"\0")) for row in rows]


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Ends in all processes alike: where the block raises in one of them, all others raise too."""
    if is_alone():
        yield
        return
    raised: Exception | None = None
    try:
        yield
    except Exception as error:
        raised = error
    parts: list[str] = []
    if isinstance(raised, UserError):
        parts = [raised.where, raised.what, raised.mend]
    elif raised is not None:
        parts = [f"{type(raised).__name__}: {raised}"]
    told = gather([part.encode()[:500].decode(errors="ignore") for part in parts])
    if raised is not None:
        raise raised
    for process, parts in enumerate(told):
        if len(parts) == 3:
            raise UserError(f"process {process}: {parts[0]}", parts[1], parts[2])
        if parts:
            raise TrainingFailed(f"process {process}: {parts[0]}")


def first_alone(work: Callable[[], T]) -> T:
    """Runs `work` in process 0 and, when that has ended well, in the others."""
    result: list[T] = []
    for mine in (is_first(), not is_first()):
        with together():
            if mine:
                result.append(work())
    return result[0]


def differences(told: list[Mapping[str, Any]]) -> list[tuple[int, str, Any, Any]]:
    """(process, quantity, its value, process 0's) of all that differs from process 0."""
    return [
        (process, name, values.get(name), told[0][name])
        for process, values in enumerate(told)
        for name in told[0]
        if values.get(name) != told[0][name]
    ]
