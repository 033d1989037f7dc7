"""Checks of an optimizer's state that was loaded: torch takes any, and would fail at the next step."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrfquant.errors import BadInput


def check_groups(optimizer: torch.optim.Optimizer, before: Sequence[dict[str, Any]]) -> None:
    """Refuse settings of other types than the groups had before they were loaded."""
    for former, group in zip(before, optimizer.param_groups, strict=True):
        for name, value in former.items():
            if name != "params" and not (name in group and _alike(value, group[name])):
                given = f"is {group[name]!r:.60}" if name in group else "is missing"
                raise BadInput(f"the optimizer's {name} {given}, expected one such as {value!r}")


def check_tensors(optimizer: torch.optim.Optimizer) -> None:
    """Refuse tensors that are missing or of other shapes than the optimizer, one of torch's own, makes itself."""
    for group in optimizer.param_groups:
        expected = _first_state(optimizer, group)
        for tensor in group["params"]:
            found = optimizer.state.get(tensor, {})
            if not isinstance(found, dict):
                raise BadInput("the optimizer's state is no dict")
            if not found:
                continue  # it has not moved yet
            for name, example in expected.items():
                value = found.get(name)
                if value is None and (example is None or isinstance(optimizer, torch.optim.SGD)):
                    continue  # without momentum so far
                shape = tensor.shape if isinstance(example, Tensor) and example.dim() else torch.Size()
                if not isinstance(value, Tensor | int | float) or getattr(value, "shape", torch.Size()) != shape:
                    raise BadInput(f"the optimizer's {name} is no tensor of shape {tuple(shape)}")
                if name == "step" and value < 0:
                    raise BadInput(f"the optimizer's step is {float(value)}, expected 0 or more")


def _first_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """Return the state that an optimizer of these settings has of a vector after its first step."""
    vector = torch.zeros(2, device=group["params"][0].device)
    vector.grad = torch.zeros_like(vector)
    known = {name: group[name] for name in inspect.signature(type(optimizer)).parameters if name in group}
    fresh = type(optimizer)([vector], **{name: value for name, value in known.items() if name != "params"})
    with torch.no_grad():
        fresh.step()
    return fresh.state[vector]


def _alike(one: Any, other: Any) -> bool:
    """Return whether two settings are of one type; numbers are one, and so are flags and None."""
    if isinstance(one, tuple | list):
        return (
            isinstance(other, tuple | list)
            and len(one) == len(other)
            and all(_alike(a, b) for a, b in zip(one, other, strict=True))
        )
    if isinstance(one, bool | None) or isinstance(other, bool | None):
        return isinstance(one, bool | None) and isinstance(other, bool | None)
    if isinstance(other, int) and abs(other) >= 2**53:
        return False  # more than a float holds
    numbers = [isinstance(x, int | float) or (isinstance(x, Tensor) and x.numel() == 1) for x in (one, other)]
    return all(numbers) or type(one) is type(other)
