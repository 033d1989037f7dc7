"""What makes a solver an optimizer like any other, for schedulers, gradient scalers and training frameworks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.labelling import Labelling

Loss = TypeVar("Loss")
OptimizerRecipe = Callable[[list[Tensor]], torch.optim.Optimizer]


class AsOptimizer(torch.optim.Optimizer, ABC):
    """A `torch.optim.Optimizer` over a network's parameters that steps by moving a solver's variables.

    `param_groups` has the network's own parameters, so that their gradients can be clipped or unscaled, and the
    settings of the optimizer that drives the variables, so that schedulers can change them: what they set is handed on
    at each step. That inner optimizer cannot be stepped by itself.

    Attributes:
        optimizer: drives the variables of the blocks, in their order, then the free parameters.
    """

    def __init__(self, labelling: Labelling, variables: list[Tensor], recipe: OptimizerRecipe) -> None:
        tensors = variables + ([labelling.free.w] if len(labelling.free) else [])
        owned = [labelling.parameters_of(block) for block in labelling.blocks] + [labelling.free.parameters]
        self.optimizer = recipe(tensors)
        if labelling.learned is not None:  # a group of their own: decay would draw scales to 1
            free_of = {"weight_decay": 0.0} if "weight_decay" in self.optimizer.defaults else {}
            self.optimizer.add_param_group({"params": [labelling.learned.log], **free_of})
        # Its groups hold the tensors; ours hold, in their places, the parameters that these stand for.
        place = {id(tensor): parameters for tensor, parameters in zip(tensors, owned, strict=False)}
        groups = [
            {**group, "params": [p for tensor in group["params"] for p in place.get(id(tensor), ())]}
            for group in self.optimizer.param_groups
        ]
        self.labelling, self._complete = labelling, False
        super().__init__(groups, dict(self.optimizer.defaults))
        self._complete = True
        self._initial_rates = [group["lr"] for group in self.param_groups]
        self._guard()

    @abstractmethod
    def take_step(self) -> None:
        """One update from the gradient that backward has left; the gradient is cleared."""

    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """One update from the gradient that backward has left, or that `closure` makes; the gradient is cleared.

        Args:
            closure: computes the loss and calls backward.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.take_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear what backward has accumulated; it stays in its place, whatever `set_to_none` says."""
        self.labelling.zero_gradient()

    def scale_learning_rate(self, factor: float) -> None:
        """Set every learning rate to `factor` times what the optimizer was made with."""
        for group, rate in zip(self.param_groups, self._initial_rates, strict=True):
            group["lr"] = rate * factor

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the solver is built: which parameters it has is the labelling's to say."""
        if getattr(self, "_complete", False):
            raise BadInput("a solver's parameters are those of its labelling: build both anew to add some")
        super().add_param_group(param_group)

    def move_variables(self) -> None:
        """Step the inner optimizer, with the settings that `param_groups` has now."""
        for ours, inner in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            inner.update((name, value) for name, value in ours.items() if name != "params")
        type(self.optimizer).step(self.optimizer)

    def load_settings(self, state: dict[str, Any]) -> None:
        """Load the inner optimizer's state, and take its settings over."""
        self.optimizer.load_state_dict(state)
        for ours, inner in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            ours.update((name, value) for name, value in inner.items() if name != "params")
        self._guard()

    def _guard(self) -> None:
        self.optimizer.step = _refuse  # type: ignore[method-assign, assignment]

    # torch's own keep three attributes only.
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._patch_step_function()
        self._guard()


def _refuse(closure: Callable[[], float] | None = None) -> None:
    """Stands in the place of the inner optimizer's step."""
    raise BadInput("this optimizer drives a solver's variables and trains nothing by itself: call solver.step()")
