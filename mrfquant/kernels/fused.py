"""Descriptions for compiled loops: the map from variables to their mean, costs of labels, an optimizer's rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

PAIR, LINE, WIDE_LINE, NARROW_LINE = range(4)  # kinds of `Mean`
LOG2E = math.log2(math.e)
FADED_LOG = 17.0  # exp(-17) is below float32's precision
UNDERFLOW_LOG = 70.0  # exp(-70) is above the smallest float32 that a sum may be
MULTIPLICATIONS_PER_EXP = 14  # fused multiply-adds in the time of an exponential


@dataclass(frozen=True)
class Mean:
    """The kernel that maps auxiliary variables (m,) to t (m,), and what it has to know.

    Attributes:
        kind: which of the kernels in `mrfquant.kernels.simplex`.
        scale: multiplies the variables in powers of two.
        spacing: of the levels on a line.
        neighbours: of the nearest level that count on either side.
        first: levels, or coefficients of powers.
        second: what goes with them.
    """

    kind: int
    scale: float
    spacing: float = 1.0
    neighbours: int = 0
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()

    @classmethod
    def of_line(cls, p: Sequence[float], spacing: float, grid: int, beta: float) -> Mean:
        """Return the map to the mean of p under u ∝ exp(beta (a p - s p² / 2)), over the highest p.

        At large beta only the nearest levels count: the others have less of u than a float's precision.

        Args:
            p: the levels, from 1 - d to d - 1.
            spacing: s.
            grid: the number of equal steps between the lowest and the highest, on whose points the levels lie; 0 if on
                none. It is d - 1 for even levels, 2 apart.
            beta: the inverse temperature.
        """
        if len(p) == 2:
            return cls(PAIR, 2 * beta * LOG2E)  # tanh(beta a), whatever the spacing
        levels, top = np.array(p), len(p) - 1
        near = math.ceil(math.sqrt(0.25 + FADED_LOG / (2 * beta * spacing)) - 0.5)  # 2 beta s n (n + 1) > FADED_LOG
        exponentials = near if grid == top else len(p)  # by the other kernels
        if grid and top**2 * beta * spacing / 2 < UNDERFLOW_LOG and grid < MULTIPLICATIONS_PER_EXP * exponentials:
            step = 2 * top / grid
            places, weights = np.rint((levels + top) / step).astype(int), np.zeros(grid + 1 + -(grid + 1) % 4)
            weights[places - (grid + 1)] = np.exp(-beta * spacing / 2 * levels**2)  # at the end: four at a time
            means = weights.copy()
            means[places - (grid + 1)] *= levels / top
            return cls(WIDE_LINE, step * beta * LOG2E, first=tuple(weights), second=tuple(means))
        if grid == top:
            return cls(NARROW_LINE, 2 * beta * LOG2E, spacing, min(near, top), first=(top,))
        return cls(LINE, beta * LOG2E, first=tuple(p), second=tuple(-spacing / 2 * levels**2))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The kernel's arguments between the variables and t."""
        numbers = (np.float32(self.scale), np.float32(self.spacing), self.neighbours)
        return (self.kind, *numbers, np.array(self.first, np.float32), np.array(self.second, np.float32))


class Costs(NamedTuple):
    """Costs of labels as a gradient on t.

    For a pair, or three even levels on a line, it is slope + bend sinh(x) / (cosh(x) + soft / 2) for
    x = scale log(2) a; for other lines it is computed from u.

    Attributes:
        ends: (parameters,) the variable after the last one of each parameter.
        numbers: (parameters, 2) slope and bend of each; or (parameters, d) the costs.
        curve: (2,) scale and soft.
        points: (2, d) levels p and -s p² / 2 of such another line; or (2, 0).
    """

    ends: np.ndarray
    numbers: np.ndarray
    curve: np.ndarray
    points: np.ndarray = np.zeros((2, 0), np.float32)


NO_COSTS = Costs(np.zeros(0, np.int64), np.zeros((0, 2), np.float32), np.zeros(2, np.float32))


class Rule(NamedTuple):
    """An optimizer's update of a tensor; whoever applies it counts Adam's step.

    Attributes:
        kind: 'adam' or 'sgd'.
        settings: Adam's are weight decay that is added to the gradient, the share of x that decoupled decay leaves,
            beta1, beta2, eps, the learning rate; SGD's are weight decay, momentum, 1 - dampening, the learning rate.
        averages: Adam's are those of gradients and of their squares; SGD's that of gradients, if it has momentum.
        steps: how many Adam has done.
    """

    kind: str
    settings: tuple[float, ...]
    averages: tuple[Tensor, ...]
    steps: Tensor | None = None
