"""A step of a block in one pass over memory: product, optimizer and projection, and the gradient cleared.

It applies where the variables have one number a weight and torch's fused Adam, AdamW or SGD drives them, on the CPU
with numba. The optimizer's settings and state stay where they are, in the optimizer: either way can go on from the
other's state, with the same results.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

OTHERS = ("amsgrad", "maximize", "nesterov", "capturable", "differentiable")  # settings that it does not know


NOTHING = torch.empty(0)


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


def rule_of(optimizer: torch.optim.Optimizer, x: Tensor) -> Rule | None:
    """The rule by which an optimizer moves x, or None if it is not one of those known here."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        return None
    group = next((group for group in optimizer.param_groups if any(x is p for p in group["params"])), None)
    if group is None or not group["fused"] or isinstance(group["lr"], Tensor) or any(group.get(n) for n in OTHERS):
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
    return Rule("sgd", settings, state["momentum_buffer"] if momentum else NOTHING, NOTHING)
