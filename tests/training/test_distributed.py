"""Two real processes on one machine: they give what one gives, and they decide as one."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs import agreement
from jaxformer.config import RunConfig
from jaxformer.distributed import Group, find_group
from jaxformer.errors import UserError
from jaxformer.run import load
from jaxformer.training.diff import compare_lines, read_lines
from jaxformer.training.loop import train
from jaxformer.training.trials import Place, Trial
from jaxformer.training.verification import Verification, shortened
from tests.training import tiny
from tests.training.pair import SPREAD, use

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of runs of tests/training/pair.py, and how they ended in either process."""
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    environment = dict(os.environ) | {"PYTHONPATH": os.getcwd()}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.training.pair", folder, str(port), str(n)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for n in range(2)
    ]
    try:
        said = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    ends = [json.loads((folder / f"ends-{n}.json").read_text()) for n in range(2)]
    return folder, ends, [err for _, err in said]


def test_two_processes_stopped_and_resumed_give_what_one_gives(pair, tmp_path):
    folder, ends, said = pair
    [end] = {end["asked"] for end in ends}  # the signal was sent to process 1 alone
    assert end == "Preempted: SIGTERM: saved at step 8, the same command resumes"
    assert [end["resumed"] for end in ends] == [12, 12]
    [noticed] = {end["noticed"] for end in ends}  # as JAX's preemption service tells all of them
    assert noticed == "Preempted: SIGTERM: saved at step 7, the same command resumes"
    assert train(tiny.config(**tiny.DROPOUT), tiny.data(), tmp_path) == 12
    assert compare_lines(tmp_path, folder / "run", rtol=1e-5) is None
    assert read_lines(tmp_path).keys() == read_lines(folder / "run").keys()
    assert "goodput" in said[0] and "goodput" not in said[1]  # process 0 alone speaks


def test_two_processes_with_half_of_a_model_each(pair, tmp_path):
    """Training, validation, a checkpoint; reading it back there and here, text and loss."""
    folder, ends, _ = pair
    assert [end["spread"] for end in ends] == [4, 4]
    assert train(tiny.config(**SPREAD | {"mesh__tensor": 1}), tiny.data(), tmp_path) == 4
    assert compare_lines(tmp_path, folder / "spread", rtol=1e-5) is None
    tokens, loss = use(load(folder / "spread"))
    for end in ends:
        assert end["loaded"] == [tokens, pytest.approx(loss, rel=1e-5)]


def test_what_one_process_raises_ends_both(pair):
    _, ends, _ = pair
    assert [end["bad input"] for end in ends] == [
        "UserError: process 1: seed: is -1, give more",
        "UserError: seed: is -1, give more",
    ]
    assert ends[0]["failure"] == "OSError: disk full"
    assert ends[1]["failure"] == "TrainingFailed: process 0: OSError: disk full"
    for end in ends:
        assert "1 × 1 but there are 2 devices" in end["no mesh"]


def test_a_process_that_differs_is_named(pair):
    folder, ends, _ = pair
    for end in ends:
        assert "process 1: begins with data other rows, process 0 with rows" in end["other data"]
        apart = "step 3: the processes have come apart: process 1 differs in the examples"
        assert apart in end["apart"]
        assert end["not compared"] is None
    assert not (folder / "other" / "config.json").exists()


def test_small_messages_and_turns(pair):
    folder, ends, _ = pair
    for end in ends:
        assert end["gather"] == [{"process": 0}, {"process": 1}]
    assert (folder / "order").read_text() == "01"


ALL = {"coordinator": "host:80", "num_processes": 4, "process_id": 3}
VARIABLES = {
    "JAX_COORDINATOR_ADDRESS": "host:80",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
}
SLURM = {"SLURM_STEP_NODELIST": "n[1-4]", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
NONE = dict.fromkeys(ALL)


@pytest.mark.parametrize(
    ("given", "environ", "group"),
    [
        ({}, {}, None),
        (ALL, {}, Group("host:80", 4, 3)),
        ({}, VARIABLES, Group("host:80", 4, 3)),
        (ALL, VARIABLES, Group("host:80", 4, 3)),
        ({"process_id": 3}, {k: v for k, v in VARIABLES.items() if "ID" not in k}, Group(**ALL)),
        ({"num_processes": 1}, {}, None),
        ({"num_processes": 1}, SLURM, None),
        ({}, SLURM, Group()),
        ({}, SLURM | {"SLURM_NTASKS": "1"}, None),
        ({}, {"OMPI_COMM_WORLD_SIZE": "2"}, Group()),
        ({"coordinator": "host:80"}, SLURM, Group("host:80")),
    ],
)
def test_flags_and_environment_name_a_group(given, environ, group):
    environ = {"JAX_PLATFORMS": "cpu"} | environ
    assert find_group(**(NONE | given), environ=environ) == group


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        ({"coordinator": "host:80"}, {}, "--num_processes: is missing while --coordinator is"),
        ({"num_processes": 2, "process_id": 0}, {}, "--coordinator: is missing while --num_proc"),
        ({"process_id": 0}, {}, "--coordinator: is missing while --process_id is given"),
        (ALL | {"process_id": 4}, {}, "--process_id: is 4 of 4 processes, give 0 to 3"),
        (ALL | {"process_id": -1}, {}, "--process_id: is -1 of 4 processes"),
        (ALL | {"num_processes": 0, "process_id": 0}, {}, "--num_processes: is 0, give 1 or more"),
        (ALL | {"coordinator": "host"}, {}, "--coordinator: is 'host', give the HOST:PORT"),
        (ALL | {"process_id": 2}, VARIABLES, "--process_id: is 2 but JAX_PROCESS_ID is 3"),
        ({"num_processes": 2}, SLURM, "--num_processes: is 2 but SLURM_NTASKS is 4, leave it out"),
        ({}, VARIABLES | {"JAX_PROCESS_ID": "x"}, "JAX_PROCESS_ID: is 'x', set it to a whole"),
    ],
)
def test_contradictions_are_refused(given, environ, words):
    with pytest.raises(UserError) as caught:
        find_group(**(NONE | given), environ=environ)
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_the_run_goes_on(tmp_path):
    """Nobody waits for ever for one that is gone."""
    c = agreement.get_config()
    c.model.d_model, c.model.num_layers, c.data.agreement.num_examples = 16, 1, 64
    c.train.num_steps, c.train.num_epochs, c.train.batch_size = 400, 0.0, 8
    cfg = shortened(RunConfig.from_config_dict(c), 400)
    Verification(cfg, tmp_path, seed=0, timeout=200.0)  # writes the config
    trial = Trial("run", tmp_path / "config.py", tmp_path, timeout=200.0)
    with trial._start(Place(2, 2)) as processes:
        while trial.last_step() < 60:
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.01)
        processes[1].kill()
        assert processes[0].wait(200) not in (0, 2, 75)
    assert trial.last_step() < 400
    trial.finish(Place(2, 2))
    assert trial.last_step() == 400
