"""The optimizers of torch under their own names in gin files, Adam, SGD, ..., and two of them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import torch
from torch import Tensor

from mrfquant.config.settings import configurable

# One cannot step without a closure, one takes sparse gradients only; a solver has dense ones and no closure.
_UNFIT = {torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam}

for _name in torch.optim.__all__:
    _class = getattr(torch.optim, _name)
    if isinstance(_class, type) and issubclass(_class, torch.optim.Optimizer) and _class not in _UNFIT:
        gin.external_configurable(_class, module="torch.optim", denylist=["params"])


class ChainedOptimizer(torch.optim.Optimizer):
    """Optimizers that step as one: their groups one after the other, their states side by side."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts: tuple[torch.optim.Optimizer, ...] = ()
        super().__init__([{"params": []}], {})
        self.parts = parts
        self._join()
        # What schedulers may ask of every group.
        self.defaults = {k: v for k, v in parts[-1].defaults.items() if all(k in part.defaults for part in parts)}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step each of them."""
        for part in self.parts:
            part.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the last part."""
        if self.parts:  # not yet in torch's own __init__
            self.parts[-1].add_param_group(param_group)
            self._join()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the state of the same ones."""
        if state_dict.keys() != self.state_dict().keys():
            raise ValueError(f"a state with {sorted(state_dict)}, expected {sorted(self.state_dict())}")
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._join()

    # torch's own keep three attributes only.
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._patch_step_function()
        self._join()

    def _join(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]  # theirs, no copies


@configurable
class ByShape:
    """A recipe of an optimizer for a solver: one for matrices, as `torch.optim.Muon`, one for everything else.

    The solver hands it the variables of every parameter of two or more dimensions as a matrix (rows, rest), for more
    than two levels one for each label, and those of the other parameters as vectors.

        ByShape(functools.partial(torch.optim.Muon, lr=0.02), functools.partial(torch.optim.AdamW, lr=0.001))

    In gin: `Experiment.optimizer = @ByShape()`, `ByShape.matrices = @Muon`, `ByShape.rest = @AdamW`.

    Args:
        matrices: the recipe of the optimizer for matrices.
        rest: the recipe of the optimizer for everything else, learned scales too.
    """

    def __init__(
        self, matrices: Callable[..., torch.optim.Optimizer], rest: Callable[..., torch.optim.Optimizer]
    ) -> None:
        self.matrices, self.rest = matrices, rest
        self.by_shape = True  # what the solver asks a recipe for

    def __call__(self, parameters: list[Any]) -> ChainedOptimizer:
        """Build both optimizers, for tensors or for groups of them."""
        groups = parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
        return ChainedOptimizer(
            self.matrices(_only(groups, lambda tensor: tensor.dim() == 2)),
            self.rest(_only(groups, lambda tensor: tensor.dim() != 2)),
        )


def _only(groups: list[dict[str, Any]], fits: Callable[[Tensor], bool]) -> list[dict[str, Any]]:
    """Return the groups with only those of their tensors that fit; one empty group if none does."""
    kept = [{**group, "params": [tensor for tensor in group["params"] if fits(tensor)]} for group in groups]
    return [group for group in kept if group["params"]] or [{"params": []}]
