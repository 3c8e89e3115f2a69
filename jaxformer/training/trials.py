"""Runs of train.py in processes of their own, to be interrupted: the hands of `verify`."""

import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAM = "from jaxformer.cli import run_train; run_train()"
POLL_SECONDS = 0.001
SAVE_SECONDS = 0.03  # a kill inside a save comes up to this long after the save's folder
PREEMPTED = 75


@dataclasses.dataclass(frozen=True)
class Moment:
    """When to send a signal: at a step, in the first save from that step on, or at the start."""

    place: str  # step | save | start
    step: int
    delay: float  # seconds after that
    signal_name: str

    def __str__(self) -> str:
        where = {
            "step": f"at step {self.step}",
            "save": f"in a save from step {self.step} on",
            "start": f"{self.delay:.1f} s after its start",
        }
        return f"{self.signal_name} {where[self.place]}"


@dataclasses.dataclass(frozen=True)
class Place:
    """On how many CPU devices and processes a run is; the devices are spread over the processes."""

    devices: int = 1
    processes: int = 1

    def flags(self) -> list[str]:
        fsdp = 2 if self.devices % 2 == 0 and self.devices > 2 else 1
        return ["--config.mesh.data=-1", f"--config.mesh.fsdp={fsdp}"]


class Broken(Exception):
    """A process ended as none may: its status and the end of what it said."""

    def __init__(self, name: str, status: int, text: str):
        super().__init__(f"{name} ended with status {status}: {text}")
        self.status, self.text = status, text


def draw_moments(
    rng: random.Random, number: int, steps: int, save_every: int, start_seconds: float
) -> list[Moment]:
    """Moments in the order in which they come in one run."""
    moments = []
    for _ in range(number):
        place = rng.choice(("step", "step", "save", "save", "start"))
        last = {"step": steps - 1, "save": steps - save_every, "start": steps - 1}[place]
        delay = {"step": 0.02, "save": SAVE_SECONDS, "start": start_seconds}[place]
        name = rng.choice(("SIGKILL", "SIGTERM"))
        moments.append(Moment(place, rng.randint(1, max(1, last)), rng.uniform(0, delay), name))
    return sorted(moments, key=lambda moment: moment.step)


class Trial:
    """One run directory and the processes that work in it, one after another."""

    def __init__(self, name: str, config: Path, out: Path, timeout: float):
        self.name, self.workdir = name, out / name
        self._config, self._logs, self._timeout = config, out / "logs", timeout
        self._logs.mkdir(parents=True, exist_ok=True)
        self._started = 0

    def finish(self, place: Place) -> float:
        """Runs to the end; returns the seconds until a first step was reported."""
        began = time.monotonic()
        with self._start(place) as processes:
            while not self.last_step() and all(process.poll() is None for process in processes):
                self._check_time(began)
                time.sleep(10 * POLL_SECONDS)
            first = time.monotonic() - began
            self._check(processes, (0,))
        return first

    def interrupt(self, place: Place, moment: Moment, rng: random.Random) -> bool:
        """Runs until the moment and sends its signal; False where the run ended before."""
        began = time.monotonic()
        with self._start(place) as processes:
            while not self._has_come(moment, began):
                if any(process.poll() is not None for process in processes):
                    self._check(processes, (0,))
                    return False
                self._check_time(began)
                time.sleep(POLL_SECONDS)
            if moment.place != "start":
                time.sleep(moment.delay)
            if moment.signal_name == "SIGKILL":
                for process in rng.sample(processes, len(processes)):
                    process.kill()
                return any(process.wait() for process in processes)
            victim = rng.choice(processes)  # one is told, all must stop
            victim.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                victim.wait(self._timeout)
            if victim.returncode == -signal.SIGTERM:  # it was starting, or had just ended
                return True
            self._check(processes, (PREEMPTED, 0))
            return victim.returncode == PREEMPTED

    def last_step(self) -> int:
        """The last step that the run has reported."""
        try:
            lines = (self.workdir / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        except OSError:
            return 0
        whole = [line for line in lines if line.endswith(b"\n")]
        return json.loads(whole[-1])["step"] if whole else 0

    def _has_come(self, moment: Moment, began: float) -> bool:
        if moment.place == "start":
            return time.monotonic() - began >= moment.delay
        if self.last_step() < moment.step:
            return False
        saving = (self.workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*")
        return moment.place == "step" or any(saving)

    @contextlib.contextmanager
    def _start(self, place: Place) -> Iterator[list[subprocess.Popen[bytes]]]:
        self._started += 1
        group = [[]]
        if place.processes > 1:
            together = [f"--coordinator=127.0.0.1:{free_port()}"]
            together.append(f"--num_processes={place.processes}")
            group = [[*together, f"--process_id={n}"] for n in range(place.processes)]
        command = [sys.executable, "-c", PROGRAM, f"--config={self._config}"]
        command += [f"--workdir={self.workdir}", *place.flags()]
        with contextlib.ExitStack() as held:
            processes = []
            for number, flags in enumerate(group):
                log = held.enter_context(open(self._log(number), "wb"))
                processes.append(
                    subprocess.Popen(
                        [*command, *flags],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=_environment(place, self._logs.parent / "compiled"),
                    )
                )
            try:
                yield processes
            finally:
                for process in processes:
                    if process.poll() is None:
                        process.kill()
                    process.wait()

    def _log(self, process: int) -> Path:
        return self._logs / f"{self.name}-{self._started}-{process}.log"

    def _check(self, processes: Sequence[subprocess.Popen[bytes]], fine: tuple[int, ...]) -> None:
        """Waits for all; raises Broken for the first whose status is none of the fine ones."""
        began = time.monotonic()
        while True:
            for number, process in enumerate(processes):
                if process.poll() not in (None, *fine):
                    text = self._log(number).read_text(errors="replace").strip()
                    raise Broken(self.name, process.poll() or 0, _end(text))
            if all(process.poll() is not None for process in processes):
                return
            self._check_time(began)
            time.sleep(10 * POLL_SECONDS)

    def _check_time(self, began: float) -> None:
        if time.monotonic() - began > self._timeout:
            raise Broken(self.name, -1, f"it hangs: nothing for {self._timeout:.0f} s")


def _end(text: str, lines: int = 20) -> str:
    return "\n".join(text.splitlines()[-lines:])


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _environment(place: Place, compiled: Path) -> dict[str, str]:
    flags = os.environ.get("XLA_FLAGS", "")
    flags = re.sub(r"--xla_force_host_platform_device_count=\S+", "", flags).strip()
    return {
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(place.devices // place.processes),
    }
