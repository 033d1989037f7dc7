"""Linear layers of other packages: which they are, and how their weights are matrices with a row for each output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Matrix:
    """How a weight is a matrix, a row for each output; in general its slices along the first dimension are the rows.

    Attributes:
        turned: whether it is (..., inputs, outputs) instead.
        stacked: whether it has the matrices of several layers, one after the other, along its first dimension.
    """

    turned: bool = False
    stacked: bool = False

    def rows(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that a weight of a shape has with its rows along the first dimension."""
        shape = self._straight(shape)
        return (shape[0] * shape[1], *shape[2:]) if self.stacked else shape

    def in_rows(self, values: Tensor) -> Tensor:
        """Return values in the weight's shape with the rows along the first dimension."""
        values = values.mT if self.turned else values
        return values.flatten(0, 1) if self.stacked else values

    def back(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Return values with the rows along the first dimension in the weight's shape, without new memory."""
        if self.stacked:
            values = values.view(*self._straight(shape)[:2], *values.shape[1:])
        return values.mT if self.turned else values

    def _straight(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1], shape[-2]) if self.turned else tuple(shape)


PLAIN = Matrix()


def other_linear(module: nn.Module, own: str) -> Matrix | None:
    """Return how a parameter of a module is a weight as that of nn.Linear, although the module is none; or None.

    Those are `Conv1D` of GPT-2, whose attributes say its size, and the experts of transformers 5, which say how their
    weights lie.
    """
    p = module._parameters[own]
    if p is None:
        return None
    if p.dim() == 2 and tuple(p.shape) == (getattr(module, "nx", None), getattr(module, "nf", None)):
        return Matrix(turned=True)
    if p.dim() == 3 and isinstance(turned := getattr(module, "is_transposed", None), bool):
        return Matrix(turned, stacked=True)
    return None


def other_matrices(model: nn.Module) -> dict[str, Matrix]:
    """Return how the weights of such layers are matrices, by each of their names."""
    found = {
        id(p): matrix
        for module in model.modules()
        for own, p in module.named_parameters(recurse=False)
        if (matrix := other_linear(module, own)) is not None
    }
    names = model.named_parameters(remove_duplicate=False)
    return {name: found[id(p)] for name, p in names if id(p) in found}


def save_in_order(module: nn.Module) -> None:
    """Let a module's state dict have parameters whose rows lie in memory by outputs as others expect them."""
    if _contiguous not in module._state_dict_hooks.values():
        module.register_state_dict_post_hook(_contiguous)


def _contiguous(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for own in module._parameters:
        if isinstance(tensor := state.get(prefix + own), Tensor):
            state[prefix + own] = tensor.contiguous()
