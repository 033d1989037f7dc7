"""A step in one pass over memory: product, optimizer and projection, and the gradient cleared.

It applies where the variables have one number a weight and torch's fused Adam, AdamW or SGD drives them, on the CPU
with numba. The optimizer's settings and state stay where they are, in the optimizer: either way can go on from the
other's state, with the same results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

PAIR, LINE, WIDE_LINE, NARROW_LINE = range(4)  # kinds of `Mean`
LOG2E = math.log2(math.e)
FADED_LOG = 17.0  # exp(-17) is below float32's precision
SMALLEST_LOG = 70.0  # exp(-70) is above the smallest float32 that a sum may be
MULTIPLICATIONS_PER_EXP = 14  # fused multiply-adds in the time of an exponential
THREAD_SHARE = 2**22  # values that are worth a thread, while torch's own still spin from the operation before
UNKNOWN_SETTINGS = ("amsgrad", "maximize", "nesterov", "capturable", "differentiable")
EMPTY = torch.empty(0)


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
    def of_pair(cls, beta: float) -> Mean:
        """tanh(beta ã)."""
        return cls(PAIR, 2 * beta * LOG2E)

    @classmethod
    def of_line(cls, p: Sequence[float], spacing: float, grid: int, beta: float) -> Mean:
        """The mean of p under u ∝ exp(beta (a p - s p² / 2)), over the highest p.

        At large beta only the nearest levels count: the others have less of u than a float's precision.

        Args:
            p: the levels, from 1 - d to d - 1.
            spacing: s.
            grid: the number of equal steps between the lowest and the highest, on whose points the levels lie; 0 if on
                none. It is d - 1 for even levels, 2 apart.
            beta: the inverse temperature.
        """
        levels, top = np.array(p), len(p) - 1
        near = math.ceil(math.sqrt(0.25 + FADED_LOG / (2 * beta * spacing)) - 0.5)  # 2 beta s n (n + 1) > FADED_LOG
        exponentials = near if grid == top else len(p)  # by the other kernels
        if grid and top**2 * beta * spacing / 2 < SMALLEST_LOG and grid < MULTIPLICATIONS_PER_EXP * exponentials:
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
    """What an optimizer does to a tensor at its next step, its counter moved on.

    Attributes:
        kind: 'adam' or 'sgd'.
        settings: Adam's are weight decay that is added to the gradient, the share of x that decoupled decay leaves,
            1 - beta1, beta2, 1 - beta2, the root of the second bias correction, eps, minus the step size; SGD's are
            weight decay, momentum, 1 - dampening, minus the learning rate.
        first: the running average of gradients, empty if there is none.
        second: the running average of their squares, empty if there is none.
    """

    kind: str
    settings: tuple[float, ...]
    first: Tensor
    second: Tensor


def begin_fused_update(optimizer: torch.optim.Optimizer, group: dict[str, Any], x: Tensor) -> Rule | None:
    """Return the rule by which an optimizer moves x, its step counted; None if it is not one of those known here.

    Args:
        group: of the optimizer's, the one that x is in.
    """
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        return None
    if not group["fused"] or isinstance(group["lr"], Tensor):
        return None
    for name in UNKNOWN_SETTINGS:
        if group.get(name):
            return None
    return (_sgd if isinstance(optimizer, torch.optim.SGD) else _adam)(group, optimizer.state[x], x)


def _adam(group: dict[str, Any], state: dict[str, Any], x: Tensor) -> Rule | None:
    beta1, beta2 = group["betas"]
    if 1 - beta1 >= 0.5:  # torch averages in another way then
        return None
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
    count = state["step"].numpy()
    count += 1
    k, rate, decay = float(count), group["lr"], group["weight_decay"]
    added, kept = (0.0, 1 - rate * decay) if group.get("decoupled_weight_decay") else (decay, 1.0)
    correction, step_size = math.sqrt(1 - beta2**k), rate / (1 - beta1**k)
    settings = (added, kept, 1 - beta1, beta2, 1 - beta2, correction, group["eps"], -step_size)
    return Rule("adam", settings, state["exp_avg"], state["exp_avg_sq"])


def _sgd(group: dict[str, Any], state: dict[str, Any], x: Tensor) -> Rule:
    momentum, share = group["momentum"], 1 - group["dampening"]
    if momentum and state.get("momentum_buffer") is None:
        state["momentum_buffer"], share = torch.zeros_like(x), 1.0  # the first gradient as it is
    settings = (group["weight_decay"], momentum, share, -group["lr"])
    return Rule("sgd", settings, state["momentum_buffer"] if momentum else EMPTY, EMPTY)


def step(
    x: Tensor,
    g: Tensor,
    w: Tensor,
    scale: Tensor | None,
    levels: tuple[float, float],
    product: tuple[float, float, float],
    rule: Rule,
    how: Mean,
    costs: Costs = NO_COSTS,
) -> None:
    """Move x along the product with g (`mean_vjp`) by the rule of an optimizer, write w, and clear g: (m,) each.

    Args:
        x: auxiliary variables.
        g: the gradient with respect to w.
        w: the weights before and after.
        scale: of every weight, if not 1.
        levels: their middle, and half the gap between the lowest and the highest.
        product: f, a and c of `mean_vjp`.
        rule: of the optimizer.
        how: the map from x to t, of which w is made.
        costs: of labels, whose gradient on t is added to that of w.
    """
    from mrfquant.kernels import steps

    factor, share, centre = product
    numbers = np.array(levels, np.float32), np.array((factor, factor * share, centre), np.float32)
    settings = np.array(rule.settings, np.float32)
    by_rule = (rule.kind == "adam", settings, rule.first, rule.second)
    every = EMPTY if scale is None else scale
    launch(steps.step, x, g, w, every, *numbers, *costs, *by_rule, *how.arguments)


def launch(kernel: Callable[..., None], first: Tensor, *others: Any) -> None:
    """Call a kernel for all m variables of its first argument, of shape (m,) or (d, m)."""
    arrays = []
    for argument in (first, *others):
        if isinstance(argument, Tensor):
            arrays.append(argument.numpy())
        else:
            arrays.append(np.float32(argument) if isinstance(argument, float) else argument)
    m = first.shape[-1]
    if first.numel() < 2 * THREAD_SHARE:
        kernel(*arrays, 0, m)
    else:
        from mrfquant.kernels.jit import parallel_ranges

        parallel_ranges(functools.partial(kernel, *arrays), m, THREAD_SHARE * m // first.numel())
