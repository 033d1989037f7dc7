"""What a run notes about where it comes from."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import mrfquant
from mrfquant.storage import run_folder
from mrfquant.storage.run_folder import environment

ROOT = Path(mrfquant.__file__).parents[1]


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
