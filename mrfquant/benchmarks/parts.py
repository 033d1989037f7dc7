"""Where the time of a training step goes."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from mrfquant.benchmarks.networks import NETWORKS, PMF, Float
from mrfquant.benchmarks.timing import Options, Row, in_turns
from mrfquant.families import Form
from mrfquant.kernels import dispatch

FORMS: tuple[tuple[int, Form], ...] = ((2, "line"), (4, "line"), (4, "planes"))


class Stopwatch:
    """Adds up the CPU seconds spent in methods of objects; each call of `lap` gives and clears the sums."""

    def __init__(self, methods: dict[str, tuple[Any, str]]) -> None:
        self._sums = dict.fromkeys(methods, 0.0)
        for part, (target, method) in methods.items():
            setattr(target, method, self._timed(part, getattr(target, method)))

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.process_time()
            result = call(*args)
            self._sums[part] += time.process_time() - start
            return result

        return timed

    def lap(self) -> dict[str, float]:
        """Return the seconds of every part since the last lap."""
        found, self._sums = self._sums, dict.fromkeys(self._sums, 0.0)
        return found


class Unfused(PMF):
    """The step without compiled loops: product, optimizer and projection one after the other, by torch."""

    def update(self) -> None:
        kept, dispatch.MIN_SIZE = dispatch.MIN_SIZE, sys.maxsize
        try:
            super().update()
        finally:
            dispatch.MIN_SIZE = kept


def measure_parts(options: Options) -> Iterator[tuple[str, Row]]:
    """Measure the milliseconds of CPU, over all threads, that the parts of a step of LeNet-300 take: medians.

    Not of the clock: a step is shorter than the time that a busy machine gives to others in between.
    """
    build, shape = NETWORKS["lenet300"]
    plain = Float(build, shape)
    quantized: dict[str, PMF] = {}
    for d, form in FORMS:
        name = f"PMF, d={d}" + (", planes" if form == "planes" else "")
        quantized[name] = PMF(build, shape, d, form)
        quantized[f"{name}, torch's operations"] = Unfused(build, shape, d, form)
    sides = {"float": plain, **quantized}
    watches = {"float": Stopwatch({"optimizer": (plain, "update")})}
    for name, side in quantized.items():
        solver = side.solver
        methods: dict[str, tuple[Any, str]] = {"product": (solver, "update"), "optimizer": (solver, "move_variables")}
        methods |= {"projection": (solver, "write"), "clearing": (solver.labelling.labelled, "zero_gradient")}
        watches[name] = Stopwatch({**methods, "fused": (solver, "fused_update")})
    laps: dict[str, list[dict[str, float]]] = {name: [] for name in sides}

    def timed(name: str) -> Callable[[], None]:
        def step() -> None:
            start = time.process_time()
            sides[name]()
            whole = time.process_time() - start
            parts = watches[name].lap()
            laps[name].append({"step, ms": whole, "forward and backward": whole - sum(parts.values()), **parts})

        return step

    in_turns({name: timed(name) for name in sides}, options)
    for name, found in laps.items():
        yield name, {part: 1000 * statistics.median(lap[part] for lap in found) for part in found[0]}
