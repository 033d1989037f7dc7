"""Timing things in turns: a noisy machine slows both sides of a ratio alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def in_turns(sides: dict[str, Callable[[], None]], steps: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every side in every round; the sides take turns, after a round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            for _ in range(steps):
                side()
            if turn:
                times[name].append((time.perf_counter() - start) / steps)
    return times


def ratio(times: list[float], reference: list[float]) -> dict[str, float]:
    """How many times the reference's seconds: median, lowest and highest of the rounds."""
    ratios = sorted(t / r for t, r in zip(times, reference, strict=True))
    return {"ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}
