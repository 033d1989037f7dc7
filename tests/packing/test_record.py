"""The one network that the repository has: docs/cifar10.md says how small it is and how good."""

import json
import re
from pathlib import Path

import pytest

from mrfquant.commands import eval as evaluation
from mrfquant.data import data_root

ROOT = Path(__file__).parents[2]
BASELINES = ROOT / "runs" / "baselines"
RECORD = BASELINES / "best_cifar10.safetensors"


def test_the_record_is_below_half_a_megabyte():
    assert RECORD.stat().st_size < 500_000


needs_cifar = pytest.mark.skipif(not (data_root() / "cifar-10-batches-bin").exists(), reason="CIFAR-10 is not there")


@pytest.mark.slow
@needs_cifar
def test_the_record_has_the_accuracy_of_its_run(tmp_path):
    stated = json.loads((BASELINES / "paper" / "best_cifar10-seed0" / "summary.json").read_text())["test_top1"]
    assert evaluation.main([str(RECORD), "--json", str(tmp_path / "figures")]) == 0
    found = json.loads((tmp_path / "figures").read_text())["top1"]
    assert found == pytest.approx(stated, abs=0.1)  # other kernels round otherwise


@pytest.mark.slow
@needs_cifar
def test_the_guides_figure_with_mirror_images(python):
    guide = (ROOT / "docs" / "cifar10.md").read_text()
    stated = re.search(r"mirror image of each, .* it has ([\d.]+) %", guide)[1]
    (snippet,) = re.findall(r"```py\n(.*?)```", guide, re.DOTALL)
    assert float(python.run("-c", snippet, cwd=ROOT).stdout.split()[0]) == pytest.approx(float(stated), abs=0.1)
