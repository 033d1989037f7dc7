"""A step of a family as one graph of torch.compile: what compiled loops do on the CPU, for other devices."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrfquant.families.base import Betas, Family, FusedRule, Gradient
from mrfquant.kernels.fused import Rule

COMPILER = "inductor"  # torch's name of what makes kernels of the graph


class Graph:
    """`pull_back`, an optimizer's rule and `write` of a family, compiled together at the first step.

    Everything that may change from step to step (beta, learning rate, decay) is a number on the device, so that a
    change neither compiles anew nor waits; Adam's count of steps is one, too. Where torch.compile fails, the same
    operations run one by one.

    Args:
        family: whose steps.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        # With code of its own: torch.compile keeps only a few graphs of each code, and here are as many as blocks.
        own = types.FunctionType(_step.__code__.replace(), _step.__globals__)
        self._plain = False  # whether compiling has failed
        try:
            self._step = torch.compile(own, fullgraph=True, dynamic=False, backend=COMPILER)
        except RuntimeError as error:  # not for this system, or this Python
            self._give_up(error)
        self._values: list[float] = []
        self._numbers: list[Tensor] = []

    def __call__(self, gradient: Gradient, x: Tensor, betas: Betas, rule: FusedRule) -> bool:
        """Do what `pull_back`, an optimizer and `write` would do; see `mrfquant.families.choice.Backend`."""
        if (how := rule(x)) is None:
            return False
        values = [*betas, *_numbers(how)]
        if not self._plain:
            from torch._dynamo.exc import TorchDynamoException

            try:
                self._step(self._family, gradient, x, self._on_device(values, x), how.steps, *how.averages)
            except TorchDynamoException as error:  # from the compiler, before anything has run
                self._give_up(error)
        if self._plain:
            _step(self._family, gradient, x, values, how.steps, *how.averages)
        return True

    def _give_up(self, error: RuntimeError) -> None:
        reason = " ".join(str(error).split("\n")[:2])
        warnings.warn(f"steps run operation by operation, torch.compile has failed: {reason}", stacklevel=3)
        self._plain = True

    def _on_device(self, values: list[float], x: Tensor) -> list[Tensor]:
        """Return numbers on the device of x; those that have changed are filled in, which does not wait for it."""
        if not self._numbers:
            self._numbers, self._values = [x.new_empty(()) for _ in values], [math.nan] * len(values)
        for number, before, value in zip(self._numbers, self._values, values, strict=True):
            if value != before:
                number.fill_(value)
        self._values = values
        return self._numbers


def _step(family: Family, gradient: Gradient, x: Tensor, numbers: Any, count: Tensor | None, *averages: Tensor) -> None:
    beta, factor, after, *settings = numbers
    g = family.pull_back(gradient, x, beta, factor)
    if count is None:
        _sgd(x, g, settings, *averages)
    else:
        _adam(x, g, settings, count, *averages)
    family.write(x, after)
    family.block.g.zero_()


def _adam(x: Tensor, g: Tensor, settings: Sequence[Any], count: Tensor, average: Tensor, square: Tensor) -> None:
    decay, kept, share, beta2, square_share, log_beta1, log_beta2, eps, rate = settings
    count.add_(1)
    g = g + decay * x
    average.lerp_(g, share)
    square.mul_(beta2).add_(square_share * g * g)
    root = (square / -torch.expm1(count * log_beta2)).sqrt()  # 1 - beta2^k, without the loss of digits
    x.mul_(kept).sub_(rate / -torch.expm1(count * log_beta1) * average / (root + eps))


def _sgd(x: Tensor, g: Tensor, settings: Sequence[Any], momentum_buffer: Tensor | None = None) -> None:
    decay, momentum, share, rate = settings
    g = g + decay * x
    if momentum_buffer is not None:
        g = momentum_buffer.mul_(momentum).add_(share * g)
    x.sub_(rate * g)


def _numbers(rule: Rule) -> tuple[float, ...]:
    """Return what `_adam` or `_sgd` takes as its settings."""
    if rule.kind == "sgd":
        return rule.settings
    decay, kept, beta1, beta2, eps, rate = rule.settings
    logs = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
    return (decay, kept, 1 - beta1, beta2, 1 - beta2, *logs, eps, rate)
