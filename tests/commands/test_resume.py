"""Killed at any moment and resumed, a run ends as if nothing had happened: same figures, same weights, to the bit."""

import functools
import json
import random
import signal
import time

import pytest
import torch

from mrfquant.storage.checkpoints import Checkpoints

CONFIG = ["--gin", "gin/pmf_lenet300_digits.gin"]
for binding in ("iterations = 200", "eval_interval = 30", "log_interval = 10", "batch_size = 50"):
    CONFIG += ["--set", f"Trainer.{binding}"]


@pytest.fixture
def start(python):
    return functools.partial(python.start, "-m", "mrfquant", "run")


def stop_at(process, folder, iteration, number):
    """Send the signal once the run's records have reached the iteration."""
    metrics = folder / "metrics.jsonl"
    while not process.poll():
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if len(lines) * 10 >= iteration:
            process.send_signal(number)
            break
        time.sleep(0.02)
    return process.wait()


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


def test_killed_at_three_random_points_a_run_ends_the_same(start, tmp_path):
    assert start(*CONFIG, "--out", tmp_path / "whole").wait().returncode == 0
    folder = tmp_path / "killed"
    points = sorted(random.SystemRandom().sample(range(10, 180), 3))
    process = start(*CONFIG, "--out", folder)
    for point in points:
        done = stop_at(process, folder, point, signal.SIGKILL)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        process = start("--resume", folder)
    done = process.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    for killed, whole in zip(outcome(folder), outcome(tmp_path / "whole"), strict=True):
        assert same(killed, whole), f"differs after kills near iterations {points}"


def test_sigterm_saves_and_says_how_to_resume(start, tmp_path):
    process = start(*CONFIG, "--out", tmp_path / "run")
    done = stop_at(process, tmp_path / "run", 50, signal.SIGTERM)
    assert done.returncode == 128 + signal.SIGTERM
    said = done.stdout + done.stderr
    assert f"go on with: mrfquant run --resume {tmp_path / 'run'}" in said
    stopped = int(said.split("stopped at iteration ")[1].split(";")[0])
    done = start("--resume", tmp_path / "run").wait()
    assert done.returncode == 0
    assert f"going on from iteration {stopped}" in done.stdout
