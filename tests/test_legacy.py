"""Runs and files of version 0.1, from before the package was moved into rooms, are read and continued.

tests/legacy/ holds them: LeNet-300 of width 0.02 on the digits, 60 iterations of PMF, one run finished and one stopped
at iteration 45, and the finished one as a packed file.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import mrfquant as mq
from mrfquant.commands.pack import pack_run
from mrfquant.reports.runs import read_run
from mrfquant.training.launch import launch

LEGACY = Path(__file__).parent / "legacy"
SUMMARY = json.loads((LEGACY / "finished" / "summary.json").read_text())


def test_a_finished_run_is_compared():
    warnings = []
    run = read_run(LEGACY / "finished", warnings.append)
    assert warnings == []
    assert run.finished
    assert run.fields == SUMMARY
    assert run.settings["Geometric.rho"] == "1.2"
    assert run.series("val_top1")[0] == [20, 40, 60]


def test_a_finished_run_is_packed_to_the_same_network_as_then():
    then, now = mq.load(LEGACY / "packed.safetensors"), pack_run(LEGACY / "finished")
    assert now.origin == then.packed_network.origin
    for name, tensor in now.state_dict().items():
        assert torch.equal(tensor, then.state_dict()[name]), name


def test_a_packed_file_predicts_what_it_did():
    from mrfquant.data import digits
    from mrfquant.training import evaluate

    data = digits(Path())
    found = evaluate(mq.load(LEGACY / "packed.safetensors"), data, "test")
    assert found["top1"] == pytest.approx(SUMMARY["test_top1"], abs=0.4)  # an image, if the machine rounds otherwise


def test_a_stopped_run_goes_on_to_the_end_of_the_whole_one(tmp_path):
    shutil.copytree(LEGACY / "stopped", tmp_path / "run")
    summary = launch(None, out=tmp_path / "run", resume=True, device="cpu", wandb="disabled").summary()
    whole = [json.loads(line) for line in (LEGACY / "finished" / "metrics.jsonl").read_text().splitlines()]
    found = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["iteration"] for r in found] == [r["iteration"] for r in whole]
    for ours, theirs in zip(found, whole, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert summary["best_iteration"] == SUMMARY["best_iteration"]
    assert summary["test_top1"] == pytest.approx(SUMMARY["test_top1"], abs=0.4)
