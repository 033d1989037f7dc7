"""How the cost of PMF's update grows with the number of parameters m and of levels d, and where that leads."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mrfquant.benchmarks.networks import _state, nbytes, planes_of
from mrfquant.benchmarks.operations import Operations
from mrfquant.benchmarks.timing import Options, Row, in_turns
from mrfquant.compute import present_team
from mrfquant.errors import BadInput
from mrfquant.families import Form
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
LEVELS = (2, 3, 4, 8, 16)
FORMS: dict[Form, str] = {"line": "", "planes": ", planes"}  # and what rows say of them
MIDDLE = 1_000_000  # parameters at which d varies
PARAMETERS, GPU_MEMORY, GPU_BANDWIDTH = 10**9, 80e9, 2.0e12  # an A100
LINKS = {8: 300e9, 64: 25e9}  # bytes a second between GPUs: NVLink in one machine, 200 Gb/s for each GPU among eight
SOME = 4_000  # parameters at which traffic is counted; so few that torch's own operations run, as on a GPU


class Update:
    """What PMF does for m parameters of d levels between two backward passes."""

    def __init__(self, m: int, d: int, form: Form = "line", shard: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Module()
        self.model.w = nn.Parameter(torch.randn(m))
        levels = [2 * k - (d - 1) for k in range(d)]
        adam = functools.partial(torch.optim.Adam, lr=1e-3, fused=True)
        self.solver = ProximalMeanField(Labelling(self.model, levels), adam, form=form, shard=shard)
        self.g = torch.randn(m)

    def __call__(self) -> None:
        self.solver.labelling.labelled.g.add_(self.g)  # as backward does
        self.solver.processes.average_gradients(present_team())
        self.solver.step()

    def kept(self) -> int:
        """Bytes that stay from step to step."""
        s = self.solver
        vectors = [s.labelling.labelled.w, s.labelling.labelled.g, *s.variables, *planes_of(s)]
        return nbytes([*vectors, *_state(s.driver)])


def measure_scaling(options: Options) -> Iterator[tuple[str, Row]]:
    """Nanoseconds and bytes per parameter, fitted exponents, and what a billion parameters take on GPUs."""
    for d in (2, 4):
        times = []
        for m in SIZES:
            row, seconds = _update(m, d, options)
            times.append(seconds)
            yield f"d={d}, m={m:,}", row
        yield f"d={d}: time ~ m^", {"exponent": exponent(SIZES, times)}
    for form, of in FORMS.items():
        times = []
        for d in LEVELS[1:]:
            row, seconds = _update(MIDDLE, d, options, form)
            times.append(seconds)
            yield f"m={MIDDLE:,}, d={d}{of}", row
        yield f"{form}: time ~ d^", {"exponent": exponent(LEVELS[1:], times)}
    yield f"{PARAMETERS:,} parameters, d=2", billion(2)
    for form, of in FORMS.items():
        yield f"{PARAMETERS:,} parameters, d=4{of}", billion(4, form)


def _update(m: int, d: int, options: Options, form: Form = "line") -> tuple[Row, float]:
    try:
        update = Update(m, d, form)
        seconds = statistics.median(in_turns({"update": update}, options)["update"])
    except RuntimeError as error:
        raise BadInput(f"{m:,} parameters of {d} levels do not fit in memory: {str(error).splitlines()[0]}") from None
    return {"ns per parameter": 1e9 * seconds / m, "bytes per parameter": update.kept() / m}, seconds


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def billion(d: int, form: Form = "line") -> dict[str, Any]:
    """Arithmetic, not measured: memory and traffic per parameter times a billion.

    A ring of n GPUs moves 2 (n - 1) / n of the gradient's 4 bytes a parameter in and out of each; reduce-scatter and
    all-gather, where the GPUs share the variables out, move half of that each. Shared out, a GPU keeps w and g, 8 bytes
    a parameter, and an n-th of the rest; backward adds to all of g and all of it is cleared, 16 bytes a parameter that
    its memory moves, and an n-th of the rest of the step is its own.
    """
    update = Update(SOME, d, form)
    update()
    with Operations() as counted:
        update()
    kept, moved = update.kept() / SOME * PARAMETERS, counted.moved / SOME * PARAMETERS
    row = {
        "GB kept": kept / 1e9,
        "share of 80 GB": kept / GPU_MEMORY,
        "GB moved": moved / 1e9,
        "ms on 1 GPU": 1e3 * moved / GPU_BANDWIDTH,
    }
    for n, link in LINKS.items():
        ring, both, whole = 2 * (n - 1) / n * 4 * PARAMETERS / link, 8 * PARAMETERS, 16 * PARAMETERS
        row[f"ms on {n}"] = 1e3 * (moved / GPU_BANDWIDTH + ring)
        row[f"GB kept on {n}, shared out"] = (both + (kept - both) / n) / 1e9
        row[f"ms on {n}, shared out"] = 1e3 * ((whole + (moved - whole) / n) / GPU_BANDWIDTH + ring)
    return row
