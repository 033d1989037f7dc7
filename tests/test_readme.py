"""What README shows works as printed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_python_snippets_run(tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert snippets
    for snippet in snippets:
        done = subprocess.run(
            [sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9  # the last one trains a binary network


def test_files_that_it_names_are_there():
    for path in re.findall(r"gin/[\w/]+\.gin", README) + re.findall(r"\]\(([\w/]+\.md)\)", README):
        assert (ROOT / path).exists(), path


def test_commands_that_it_names_take_the_flags_it_gives():
    for module, words in re.findall(r"-m (mrfquant\.\w+)([^\n`]*)", README):
        help_text = subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for flag in re.findall(r"--[a-z]+", words):
            assert flag in help_text, f"{module} {flag}"
