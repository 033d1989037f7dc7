"""Killed at any moment and resumed, a run ends as if nothing had happened: same figures, same weights, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import torch

from mrfquant.storage.checkpoints import Checkpoints

COMMAND = [sys.executable, "-m", "mrfquant", "run"]
CONFIG = ["--gin", "gin/pmf_lenet300_digits.gin"]
for binding in ("iterations = 600", "eval_interval = 70", "log_interval = 10", "batch_size = 50"):
    CONFIG += ["--set", f"Trainer.{binding}"]
ENVIRONMENT = {**os.environ, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def start(*arguments):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*arguments):
    process = start(*arguments)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def stop_at(process, folder, iteration, number):
    """Send the signal once the run's records have reached the iteration."""
    metrics = folder / "metrics.jsonl"
    while process.poll() is None:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if len(lines) * 10 >= iteration:
            process.send_signal(number)
            break
        time.sleep(0.02)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def outcome(folder):
    """All that must be the same: the records without their timings, the summary, every tensor of the last state."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for entry in [*records, summary]:
        for timing in ("seconds", "steps_per_second"):
            entry.pop(timing, None)
    checkpoints = Checkpoints(folder / "checkpoints")
    state = checkpoints.newest(print)
    return records, summary, state, checkpoints.best(state["best_iteration"])


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a if k != "seconds")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_killed_at_three_random_points_a_run_ends_the_same(tmp_path):
    assert finish(*CONFIG, "--out", tmp_path / "whole")[0] == 0
    folder = tmp_path / "killed"
    points = sorted(random.SystemRandom().sample(range(10, 580), 3))
    process = start(*CONFIG, "--out", folder)
    for point in points:
        status, output = stop_at(process, folder, point, signal.SIGKILL)
        assert status == -signal.SIGKILL, output
        process = start("--resume", folder)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    for killed, whole in zip(outcome(folder), outcome(tmp_path / "whole"), strict=True):
        assert same(killed, whole), f"differs after kills near iterations {points}"


def test_sigterm_saves_and_says_how_to_resume(tmp_path):
    process = start(*CONFIG, "--out", tmp_path / "run")
    status, output = stop_at(process, tmp_path / "run", 50, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert f"go on with: mrfquant run --resume {tmp_path / 'run'}" in output
    stopped = int(output.split("stopped at iteration ")[1].split(";")[0])
    status, output = finish("--resume", tmp_path / "run")
    assert status == 0
    assert f"going on from iteration {stopped}" in output
