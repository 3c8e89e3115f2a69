"""Where a run may write: a folder, no URL, and the same one in all processes."""

import secrets

import pytest

from jaxformer.distributed import find_group
from jaxformer.errors import UserError
from jaxformer.training import workdir
from tests.training import tiny


@pytest.mark.parametrize("url", ["gs://bucket/run", "s3://b/run", "gs:/bucket/run"])
def test_a_url_is_refused_and_nothing_is_made(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        workdir.writable(url)
    line = f"--workdir: {url} is a URL, not a folder, mount the bucket and name the folder"
    assert str(caught.value).startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_a_url_to_start_from_is_refused_with_the_config():
    changes = {"train__init_from": "gs://b/run", "train__init_paths": ("*",)}
    with pytest.raises(UserError, match=r"train.init_from: gs://b/run is a URL"):
        tiny.config(**changes)


def test_names_with_a_colon_are_folders(tmp_path):
    assert workdir.writable(tmp_path / "run:2").is_dir()


@pytest.fixture
def of_two(monkeypatch):
    """Runs check_shared as process 1 of two; process 0 has written `word` where it is."""

    def run(path, word, note):
        told = iter([[word, "mine"], None])  # first the words of both, then what both have seen
        monkeypatch.setattr(workdir, "is_alone", lambda: False)
        monkeypatch.setattr(workdir, "is_first", lambda: False)
        monkeypatch.setattr(workdir, "gather", lambda mine: next(told) or [True, mine])
        appears = workdir._appears
        monkeypatch.setattr(workdir, "_appears", lambda *a: appears(*a, seconds=0.2))
        if note is not None:
            (path / ".shared").write_text(note)
        workdir.check_shared(path)

    return run


def test_processes_that_see_the_same_file_go_on(of_two, tmp_path):
    of_two(tmp_path, "word", "word")


@pytest.mark.parametrize("note", [None, "of another run"])
def test_a_folder_of_its_own_is_refused(of_two, tmp_path, note):
    with pytest.raises(UserError) as caught:
        of_two(tmp_path, "word", note)
    what = f"workdir {tmp_path}: is not the same folder in process 1 as in process 0, give one on"
    assert str(caught.value).startswith(what)


def test_one_process_needs_no_proof(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda size: pytest.fail("asked"))
    workdir.check_shared(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_slurm_script_without_srun_is_told_that_it_runs_alone(capsys):
    environ = {"JAX_PLATFORMS": "cpu", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    assert find_group(None, None, None, environ) is None
    expected = "warning: SLURM_NTASKS is 4 and srun did not start this: it runs alone\n"
    assert capsys.readouterr().err == expected
    assert find_group(None, None, None, environ | {"SLURM_NTASKS": "1"}) is None
    assert capsys.readouterr().err == ""
