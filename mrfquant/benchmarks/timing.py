"""Timing things in turns: a noisy machine slows both sides of a ratio alike."""

import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]  # column -> a number, or a ratio with its quartiles


@dataclass(frozen=True)
class Options:
    """How long a comparison may take, of which networks, with other libraries or not, and by which clock.

    The clock 'cpu' counts the seconds of this process alone, which on a busy machine leaves out the time of others.
    """

    seconds: float = 10.0
    models: tuple[str, ...] = ("lenet300", "lenet5", "resnet18", "vgg16")
    peers: bool = False
    clock: Literal["wall", "cpu"] = "wall"

    MIN_TURN = 0.02  # seconds that a turn lasts at least
    MIN_ROUNDS, MAX_ROUNDS = 3, 200  # rounds

    @property
    def now(self) -> Callable[[], float]:
        """The clock."""
        return {"wall": time.perf_counter, "cpu": time.process_time}[self.clock]


def in_turns(sides: Mapping[str, Callable[[], Any]], options: Options) -> dict[str, list[float]]:
    """Return seconds per call of every side in every round: short turns, so that neighbours meet the same machine."""
    calls = {}
    for name, side in sides.items():  # the first call may compile something: if it is short, look again
        first = _seconds(side, 1, options.now)
        again = first if first > 1 else _seconds(side, 1, options.now)
        calls[name] = math.ceil(options.MIN_TURN / max(again, 1e-4))
    times: dict[str, list[float]] = {name: [] for name in sides}
    start = time.perf_counter()
    for turn in range(options.MAX_ROUNDS):
        if turn >= options.MIN_ROUNDS and time.perf_counter() - start > options.seconds:
            break
        for name, side in sides.items():
            times[name].append(_seconds(side, calls[name], options.now))
    return times


def _seconds(side: Callable[[], Any], calls: int, now: Callable[[], float]) -> float:
    start = now()
    for _ in range(calls):
        side()
    return (now() - start) / calls


def ratio(times: list[float], reference: list[float]) -> dict[str, float]:
    """Return how many times the reference's seconds: median and quartiles over the rounds."""
    ratios = [t / r for t, r in zip(times, reference, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {"ratio": middle, "low": low, "high": high, "rounds": len(ratios)}


def ratios(times: dict[str, list[float]]) -> Row:
    """Return a row: milliseconds of the first side, and the others as ratios to it."""
    reference, *others = times
    found: Row = {f"{reference}, ms": 1000 * statistics.median(times[reference])}
    return found | {name: ratio(times[name], times[reference]) for name in others}


def peer(module: str, install: str) -> Any | None:
    """Return the module of another library; where it is not installed, None, and a sentence that says what to do."""
    try:
        return importlib.import_module(module)
    except ImportError:
        print(f"{module.partition('.')[0]} is not installed, so it is left out: pip install {install}", file=sys.stderr)
        return None
