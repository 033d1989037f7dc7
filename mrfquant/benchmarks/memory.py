"""Measure the memory that PMF keeps and needs while it is built, against float: each side in a process of its own."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mrfquant.benchmarks.networks import LEVELS
from mrfquant.benchmarks.timing import Options, Row
from mrfquant.errors import BadInput
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling

WIDTH, LAYERS, BATCH, STEPS = 2048, 12, 64, 3
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SIDES = ("2", "3", "3 bfloat16")  # numbers of levels, and the type of the network if it is not float32


def measure_memory(options: Options) -> Iterator[tuple[str, Row]]:
    """Measure what PMF keeps (in float32's), its peaks (in what it keeps), and building (in steps)."""
    if not CLEAR.exists():
        raise BadInput("bench memory reads the peak of a process from /proc, which this system does not have")
    kept = _measure_in_process("float")["kept"]
    for side in SIDES:
        found = _measure_in_process(side)
        row: Row = {"float, MB": kept, "kept": {"ratio": found["kept"] / kept}}
        row |= {peak: {"ratio": found[peak] / found["kept"]} for peak in ("peak of building", "peak of a step")}
        yield f"d={side}", {**row, "building, steps": found["building"] / found["step"]}


def _measure_in_process(side: str) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, side, str(LAYERS), str(torch.get_num_threads())]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout))


def measure_side(side: str, layers: int) -> dict[str, float]:
    """Return the figures of one side, in this process: megabytes more than before there was a network, and seconds."""
    small = nn.Linear(256, 256, bias=False)
    _step(small, _solver(small, side), torch.randn(BATCH, 256))  # what is loaded and compiled once
    inputs, before = torch.randn(BATCH, WIDTH), _megabytes("VmRSS")
    dtype = torch.bfloat16 if side.endswith("bfloat16") else torch.float32
    model, inputs = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))), inputs.to(dtype)
    model.to(dtype)
    CLEAR.write_text("5")  # the peak is that from here on
    start = time.process_time()
    solver = _solver(model, side)
    found = {"building": time.process_time() - start, "peak of building": _megabytes("VmHWM") - before}
    for step in range(STEPS):
        if step == STEPS - 1:
            CLEAR.write_text("5")
        start = time.process_time()
        _step(model, solver, inputs)
        found["step"] = time.process_time() - start
    found["peak of a step"] = _megabytes("VmHWM") - before
    ctypes.CDLL(None).malloc_trim(0)  # what is free already
    return found | {"kept": _megabytes("VmRSS") - before}


def _solver(model: nn.Module, side: str) -> Any:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3, fused=True)

    if side == "float":
        return adam(model.parameters())
    labelling = Labelling(model, LEVELS[int(side.split()[0])], which="weights", scale="channel")
    return ProximalMeanField(labelling, adam, start="weights")


def _step(model: nn.Module, solver: Any, inputs: torch.Tensor) -> None:
    model(inputs).square().mean().backward()
    solver.step()


def _megabytes(what: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps(measure_side(sys.argv[1], int(sys.argv[2]))))
