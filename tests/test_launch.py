"""The launchers, in their dry mode: what they would run, word by word."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
POD = ["scripts/launch_tpu_pod.sh", "--dry"]
SLURM = ["scripts/launch_slurm.sh", "--dry"]
ON_ALL = "gcloud compute tpus tpu-vm ssh pod --zone=here-a --worker=all"


def run(command, **environ):
    kept = {name: value for name, value in os.environ.items() if name not in ("BUCKET", "PROJECT")}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=kept | environ, check=False
    )


def words(command, **environ):
    done = run(command, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_a_pod_trains_with_the_same_command_on_every_host():
    flags = ["--config=configs/text.py", "--config.data.path=two words.txt", "--workdir=b/run"]
    [line] = words([*POD, "train", "pod", "here-a", *flags])
    *before, last = line
    assert before == shlex.split(ON_ALL)
    command = last.removeprefix("--command=cd jaxformer && exec .venv/bin/python train.py ")
    assert shlex.split(command) == flags


def test_a_pod_is_set_up_from_this_commit():
    lines = words([*POD, "setup", "pod", "here-a"], PROJECT="p", PYTHON="python3.12")
    assert [line[0] for line in lines] == ["git", "gcloud", "gcloud"]
    assert lines[0][-1] == "HEAD"
    assert lines[1][4:] == ["scp", *lines[1][5:7], "--zone=here-a", "--worker=all", "--project=p"]
    assert "make -C jaxformer install EXTRAS=tpu PYTHON=python3.12" in lines[2][-1]
    with_bucket = words([*POD, "setup", "pod", "here-a"], BUCKET="b")
    assert "gcsfuse --implicit-dirs b bucket" in with_bucket[-1][-1]


def test_a_pod_is_stopped_by_sigterm():
    [line] = words([*POD, "stop", "pod", "here-a"])
    assert line[-1].startswith("--command=pkill -TERM -f ")


def test_slurm_starts_a_process_a_gpu_and_queues_again_what_was_preempted():
    flags = ["--config=configs/text.py", "--workdir=two words"]
    done = run([*SLURM, "2", "8", "--time=1:00:00", "--", *flags])
    assert (done.returncode, done.stderr) == (0, "")
    first, *job = done.stdout.splitlines()
    assert shlex.split(first) == ["sbatch", "--time=1:00:00"]
    assert job[0] == "#!/usr/bin/env bash"
    assert {"--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--requeue"} <= {
        line.removeprefix("#SBATCH ") for line in job if line.startswith("#SBATCH")
    }
    [step] = [line for line in job if line.startswith("srun")]
    assert shlex.split(step)[2:] == [".venv/bin/python", "train.py", *flags]


def test_the_job_asks_for_another_turn_after_status_75_only(tmp_path):
    job = run([*SLURM, "1", "1", "--", "--config=a"]).stdout.split("\n", 1)[1]
    for name in ("srun", "scontrol"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho {name} "$@"\n[ {name} = scontrol ] || exit $STATUS\n')
        script.chmod(0o755)
    for status in ("0", "75", "2"):
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = run(["bash", "-c", job], PATH=path, STATUS=status, SLURM_JOB_ID="7")
        assert done.returncode == int(status)
        assert ("scontrol requeue 7" in done.stdout) == (status == "75")


@pytest.mark.parametrize(
    "command",
    [
        [*POD],
        [*POD, "launch", "pod", "here-a"],
        [*POD, "train", "pod"],
        [*POD, "stop", "pod", "here-a", "more"],
        [*SLURM, "2"],
        [*SLURM, "two", "8", "--", "--config=a"],
        [*SLURM, "2", "8", "--config=a"],
    ],
)
def test_half_a_command_is_status_2_with_the_usage(command):
    done = run(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: scripts/")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_scripts_pass_shellcheck():
    scripts = sorted(str(path) for path in (ROOT / "scripts").glob("*.sh"))
    done = run(["shellcheck", *scripts])
    assert done.returncode == 0, done.stdout


def test_scripts_parse():
    for path in sorted((ROOT / "scripts").glob("*.sh")):
        assert run(["bash", "-n", str(path)]).returncode == 0
        assert os.access(path, os.X_OK)
