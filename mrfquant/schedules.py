"""Schedules: pure functions of the iteration, so a resumed run needs no state to continue them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from mrfquant.config.settings import Count, Fraction, NonNegative, Positive, Whole, configurable
from mrfquant.errors import BadInput, BadSetting


class Schedule(ABC):
    """A number for every iteration k = 0, 1, ...; `budget` is how many iterations the run has, None if unknown."""

    @abstractmethod
    def __call__(self, k: int, budget: int | None) -> float:
        """Return the value at iteration `k`."""


@configurable
class Constant(Schedule):
    """One value at every iteration."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = float(value)

    def __call__(self, k: int, budget: int | None) -> float:
        return self.value


@configurable
class StepDecay(Schedule):
    """Multiplied by `scale` every `interval` iterations, the first time after `interval` of them."""

    def __init__(self, interval: Count, scale: Positive) -> None:
        self.interval, self.scale = interval, scale

    def __call__(self, k: int, budget: int | None) -> float:
        return self.scale ** (k // self.interval)


@configurable
class MultiStepDecay(Schedule):
    """Multiplied by `scale` when the iteration count reaches each of the `milestones`."""

    def __init__(self, milestones: Sequence[int], scale: Positive) -> None:
        if list(milestones) != sorted(set(milestones)) or min(milestones, default=0) <= 0:
            raise BadSetting("MultiStepDecay.milestones", list(milestones), "increasing whole numbers above 0")
        self.milestones, self.scale = list(milestones), scale

    def __call__(self, k: int, budget: int | None) -> float:
        return self.scale ** bisect_right(self.milestones, k)


@configurable
class CosineDecay(Schedule):
    """From 1 to `final` along half a cosine over the budget, after a linear rise over `warmup` iterations."""

    def __init__(self, final: NonNegative = 0.0, warmup: Whole = 0) -> None:
        self.final, self.warmup = final, warmup

    def __call__(self, k: int, budget: int | None) -> float:
        if k < self.warmup:
            return (k + 1) / self.warmup
        if budget is None:
            raise BadInput("CosineDecay ends with the run: its number of steps must be known")
        done = (k - self.warmup) / max(1, budget - self.warmup)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(1.0, done))) / 2


@configurable
class Geometric(Schedule):
    """The paper's annealing: `start`, multiplied by `rho` every `interval` iterations, up to `cap`.

    The first growth follows iteration 0, as in the authors' code, so the value at iteration k has grown
    ceil(k / interval) times.
    """

    def __init__(self, rho: Positive, interval: Count = 100, cap: Positive = 1e4, start: Positive = 1.0) -> None:
        self.rho, self.interval, self.cap, self.start = rho, interval, cap, start

    def __call__(self, k: int, budget: int | None) -> float:
        growth = -(-k // self.interval) * math.log(self.rho)  # as a logarithm: the power may not fit a float
        return self.cap if growth >= math.log(self.cap / self.start) else self.start * math.exp(growth)


class _Annealed(Schedule):
    """From `start` to `end` over the budget, or its first share `by`, staying there."""

    def __init__(self, end: Positive = 1e4, start: Positive = 1.0, by: Fraction = 1.0) -> None:
        self.end, self.start, self.by = end, start, by

    def __call__(self, k: int, budget: int | None) -> float:
        if k and budget is None:
            raise BadInput(f"{type(self).__name__} ends with the run: set the solver's budget to its number of steps")
        return self.between(min(1.0, k / max(1, self.by * (budget or 1))))

    @abstractmethod
    def between(self, done: float) -> float:
        """Return the value when the share `done` of the way is gone."""


@configurable
class GeometricTo(_Annealed):
    """Grows by the same factor at every iteration, or by factors that grow themselves.

    Args:
        end: the value in the end.
        start: the value at the start.
        power: of the share of the run that is done: at 2, a quarter of the growth comes in the first half of the run.
        by: the share of the run after which the end is reached.
    """

    def __init__(self, end: Positive = 1e4, start: Positive = 1.0, power: Positive = 1.0, by: Fraction = 1.0) -> None:
        super().__init__(end, start, by)
        self.power = power

    def between(self, done: float) -> float:
        return self.start * (self.end / self.start) ** done**self.power


@configurable
class LinearTo(_Annealed):
    """Grows by the same amount at every iteration."""

    def between(self, done: float) -> float:
        return self.start + (self.end - self.start) * done
