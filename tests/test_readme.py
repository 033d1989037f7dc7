"""What README and the guides show works as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.models import LeNet300
from mrfquant.packing import pack_model

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(guide.read_text() for guide in GUIDES)


def write_packed(path):
    """A small network on two levels."""
    model = LeNet300((1, 28, 28), 10, width=0.1)
    labelling = Labelling(model, [-1, 1])
    with ProximalMeanField(labelling, lambda p: torch.optim.SGD(p, lr=0.1)).rounded():
        network = pack_model(model, labelling)
    network.write(path)


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL))
def test_python_snippets_run(snippet, tmp_path):
    if "model.safetensors" in snippet:
        write_packed(tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    if "ProximalMeanField" in snippet:
        assert float(done.stdout.split()[-1]) > 0.9  # it trains a binary network


def test_files_that_it_names_are_there():
    for path in re.findall(r"gin/[\w/]+\.gin", TEXT) + re.findall(r"\]\(([\w/]+\.(?:md|png))\)", TEXT):
        assert (ROOT / path).exists() or (ROOT / "docs" / path).exists(), path


def test_commands_that_it_names_take_the_flags_it_gives():
    for module, words in re.findall(r"-m (mrfquant\.\w+)([^\n`]*)", TEXT):
        help_text = subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for flag in re.findall(r"--[a-z]+", words):
            assert flag in help_text, f"{module} {flag}"
