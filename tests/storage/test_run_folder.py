"""A run's folder: what it notes about where it comes from, how it is made and owned."""

import contextlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import mrfquant
from mrfquant.errors import BadInput
from mrfquant.storage import run_folder
from mrfquant.storage.files import write_text
from mrfquant.storage.run_folder import RunFolder, environment

ROOT = Path(mrfquant.__file__).parents[1]


def made(path, config=""):
    """A new run that nobody owns any more."""
    with RunFolder.create(path, config) as run:
        return run


def test_the_version_is_known_without_installation(monkeypatch):
    def not_installed(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", not_installed)
    packages = environment(torch.device("cpu"))["packages"]
    assert packages == {"mrfquant": mrfquant.__version__, **dict.fromkeys(run_folder.PACKAGES)}


def test_the_command_tells_the_version_of_the_checkout_it_is_run_from(tmp_path):
    shutil.copytree(ROOT / "mrfquant", tmp_path / "mrfquant", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "mrfquant" / "__init__.py"
    file.write_text(file.read_text().replace(f'"{mrfquant.__version__}"', '"1.2.3.dev4"'))
    words = [sys.executable, "-m", "mrfquant", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "mrfquant 1.2.3.dev4\n"


@pytest.mark.parametrize("checkout", [True, False])
def test_the_commit_is_that_of_the_source_and_of_nothing_around_it(checkout, tmp_path, monkeypatch):
    """Installed in a virtual environment that lies in a repository of its own, it has no commit."""
    top = tmp_path if checkout else tmp_path / ".venv" / "site-packages"
    (top / "mrfquant" / "storage").mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "first"], check=True)
    monkeypatch.setattr(run_folder, "__file__", str(top / "mrfquant" / "storage" / "run_folder.py"))
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert run_folder._git_commit() == (head if checkout else None)


def test_a_folder_left_by_a_kill_while_it_was_made_can_be_used(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / ".config.gin.0123456789abcdef.tmp").write_text("import ")
    (path / ".lock").touch()
    with pytest.raises(BadInput, match="was stopped before its run began: start it again with --out"):
        RunFolder.open(path)
    run = made(path, "x = 1")
    assert run.config.read_text() == "x = 1"
    assert not list(path.glob(".*.tmp"))


def test_killed_at_any_file_operation_of_its_making_a_run_can_be_started_again(tmp_path, monkeypatch):
    class Killed(BaseException):
        """Nothing is cleaned up after it."""

    def dies(*args, **kwargs):
        raise Killed

    for number, name in enumerate(("fsync", "replace", "mkdir")):
        path = tmp_path / str(number)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, dies)
            patch.setattr(Path, "unlink", dies)  # a process that is dead does not clean up
            with pytest.raises(Killed):
                made(path, "x = 1")
        assert made(path, "x = 1").config.read_text() == "x = 1"


def test_leftovers_of_a_killed_process_are_cleaned_once_the_run_is_owned(tmp_path):
    run = made(tmp_path / "run")
    run.checkpoints.save(1, {}, None)
    for name in (".env.json.12345.tmp", "checkpoints/.step-00000002.pt.0123456789abcdef.tmp"):
        (run.path / name).write_text("half")
    with run.owned():
        assert not [*run.path.rglob("*.tmp")]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("content")
    run = made(tmp_path / "run")
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(precious)
    with pytest.raises(BadInput, match="it is a link"), run.owned():
        pass
    assert precious.read_text() == "content"
    (run.path / ".lock").unlink()
    (run.path / ".lock").write_text("not mine to cut")
    with run.owned():
        assert (run.path / ".lock").read_text() == "not mine to cut"


@pytest.mark.parametrize("name", ["metrics.jsonl", "env.json", "identity.json", "log.txt", "operative.gin"])
def test_a_link_in_a_run_folder_is_not_written_through(name, tmp_path):
    (tmp_path / "precious").write_text("content")
    run = made(tmp_path / "run")
    (run.path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(BadInput, match="is a link"), run.owned():
        pass
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "log.txt", "env.json", "config.gin", ".lock"])
def test_a_pipe_in_a_run_folder_stops_nothing(tmp_path, name):
    run = made(tmp_path / "run")
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    with pytest.raises(BadInput, match="no ordinary file"):
        RunFolder.open(run.path)
    for read in (run.summary, run.records, run.settings, run.identity):  # as reports read, one file at a time
        with contextlib.suppress(BadInput, OSError):
            read()  # and does not wait for a writer


def test_an_endless_file_is_not_read(tmp_path):
    run = made(tmp_path / "run")
    (run.path / "summary.json").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match=r"summary.json is damaged"):
        run.summary()


def test_temporary_names_cannot_be_guessed(tmp_path, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(Path(a).name), replace(a, b)))
    for _ in range(2):
        write_text(tmp_path / "file", "x")
    assert len(set(seen)) == 2
    assert all(str(os.getpid()) not in name.split(".") for name in seen)


def test_a_second_start_in_a_folder_that_is_being_made_changes_nothing(tmp_path, monkeypatch):
    """However long the first start takes to write its configuration."""
    refusals = []

    def slow(path, text):
        monkeypatch.setattr(run_folder, "write_text", write_text)
        with pytest.raises(run_folder.Busy) as refused, RunFolder.create(tmp_path / "run", "Experiment.seed = 2"):
            pass
        refusals.append(refused.value)
        write_text(path, text)

    monkeypatch.setattr(run_folder, "write_text", slow)
    run = made(tmp_path / "run", "Experiment.seed = 1")
    assert len(refusals) == 1
    assert run.config.read_text() == "Experiment.seed = 1"
    with pytest.raises(BadInput, match="is there already"):
        made(tmp_path / "run", "Experiment.seed = 2")
    assert run.config.read_text() == "Experiment.seed = 1"


def test_what_lies_in_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="is there already"):
        made(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
