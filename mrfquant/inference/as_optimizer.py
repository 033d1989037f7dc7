"""What makes a solver an optimizer like any other, for schedulers, gradient scalers and training frameworks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.inference.driven import Driven, by_shape, in_one_piece
from mrfquant.inference.optimizers import Together
from mrfquant.labelling import Block, Labelling

Loss = TypeVar("Loss")
OptimizerRecipe = Callable[[list[Any]], torch.optim.Optimizer]
BY_WEIGHT = [
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adadelta),
    *(torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop),
]  # optimizers for which a weight is a weight, whatever tensor it lies in


class AsOptimizer(torch.optim.Optimizer, ABC):
    """A `torch.optim.Optimizer` over a network's parameters that steps by moving a solver's variables.

    `param_groups` has the network's own parameters, so that their gradients can be clipped or unscaled, and the
    settings of the optimizer that drives the variables, so that schedulers can change them: what they set is handed on
    at each step. That inner optimizer cannot be stepped by itself. Its groups are those of the labelling, then that of
    learned scales.

    Weight decay pulls on the variables: auxiliary ones go towards undecided labels, latent weights towards their zero.
    `Labelling(..., groups={"labelled": {"weight_decay": 0.0}})` keeps it to the free parameters.

    Attributes:
        optimizer: drives the variables of the blocks, in their order, then the free parameters.
    """

    def __init__(self, labelling: Labelling, variables: list[Tensor], recipe: OptimizerRecipe) -> None:
        apart = bool(getattr(recipe, "by_shape", False))
        if apart and labelling.sharded:
            raise BadInput("ByShape drives whole matrices, Labelling.shard cuts them: take one of the two")
        driven = (by_shape if apart else in_one_piece)(labelling, variables)
        self.optimizer = recipe(_as_groups(labelling, driven))
        _check_settings(labelling, self.optimizer)
        if labelling.sharded and type(self.optimizer) not in BY_WEIGHT:
            raise BadInput(
                f"Labelling.shard needs an optimizer that treats each weight by itself, "
                f"{type(self.optimizer).__name__} may not: take one of {', '.join(c.__name__ for c in BY_WEIGHT)}"
            )
        if isinstance(self.optimizer, Together) and len(self.optimizer.parts) > 1 and not apart:
            raise BadInput("ByShape has to know that it drives a solver: hand it over itself, not within a function")
        if labelling.learned is not None:  # a group of their own: decay would draw scales to 1
            self.optimizer.add_param_group({"params": [labelling.learned.log]})
            if "weight_decay" in (last := self.optimizer.param_groups[-1]):
                last["weight_decay"] = 0.0
            last.update(labelling.scale_settings)
        # Its groups hold the tensors; ours hold, in their places, the parameters that these stand for.
        place = {id(part.tensor): part.parameters for part in driven}
        groups = [
            {**group, "params": _once(p for tensor in group["params"] for p in place.get(id(tensor), ()))}
            for group in self.optimizer.param_groups
        ]
        self.labelling, self._complete = labelling, False
        self._driven = driven
        self._views = [part for part in driven if part.tensor is not part.base]
        super().__init__(groups, {})  # the groups have all settings already
        self.defaults = dict(self.optimizer.defaults)
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

    def hand_on_settings(self) -> None:
        """Give the inner optimizer the settings that `param_groups` has now."""
        for ours, inner in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            inner.update((name, value) for name, value in ours.items() if name != "params")

    def move_variables(self) -> None:
        """Step the inner optimizer."""
        for part in self._views:
            part.tensor.grad = None if part.base.grad is None else part.of(part.base.grad)
        type(self.optimizer).step(self.optimizer)
        for part in self._views:
            part.tensor.grad = None
        self._take_settings()

    def learning_rate(self, block: Block) -> float:
        """That of a block's variables."""
        own = {id(self.labelling.labelled.parameter(name)) for name in self.labelling.names_in(block)}
        rates = {group["lr"] for group in self.param_groups if any(id(p) in own for p in group["params"])}
        if len(rates) > 1:
            raise BadInput(
                f"{type(self).__name__} needs one learning rate for each level set: ByShape has {sorted(rates)}"
            )
        return rates.pop()

    def inner_state(self) -> dict[str, Any]:
        """The inner optimizer's state as one process alone would have it; whole with the leader only."""
        state = self.optimizer.state_dict()
        return self._mapped(state, Driven.joined) if self.labelling.sharded else state

    def load_settings(self, state: dict[str, Any]) -> None:
        """Load the inner optimizer's state, and take its settings over."""
        try:
            self.optimizer.load_state_dict(self._mapped(state, Driven.cut) if self.labelling.sharded else state)
        except (KeyError, ValueError):
            raise BadInput("the saved state does not fit: it is of another optimizer, or of other groups") from None
        self._take_settings()
        self._guard()

    def _mapped(self, state: dict[str, Any], change: Callable[[Driven, Tensor], Tensor]) -> dict[str, Any]:
        """An optimizer's state with every tensor changed, of those that the driven ones have there."""
        tensors = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
        found = {}
        for number, values in state["state"].items():
            # None for learned scales, which every process has.
            part = next((part for part in self._driven if part.tensor is tensors[number]), None)
            found[number] = {n: change(part, v) if part and isinstance(v, Tensor) else v for n, v in values.items()}
        return {**state, "state": found}

    def _take_settings(self) -> None:
        """Those of the inner optimizer's groups, some of which count steps there."""
        for ours, inner in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            ours.update((name, value) for name, value in inner.items() if name != "params")

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


def _as_groups(labelling: Labelling, driven: list[Driven]) -> list[Any]:
    """What the recipe gets: the tensors, or groups of them with their settings."""
    if not labelling.grouped:
        return [part.tensor for part in driven]
    return [
        {**settings, "params": [part.tensor for part in driven if part.group == number]}
        for number, settings in enumerate(labelling.settings)
    ]


def _check_settings(labelling: Labelling, optimizer: torch.optim.Optimizer) -> None:
    """torch takes any name of a setting, and does nothing about those it does not know."""
    parts = optimizer.parts if isinstance(optimizer, Together) else [optimizer]
    known = {name for part in parts for name in part.defaults}
    for settings in (*labelling.settings, labelling.scale_settings):
        if unknown := set(settings) - known:
            raise BadInput(
                f"Labelling.groups sets {min(unknown)!r}, the optimizer has {', '.join(sorted(known))}",
                "Labelling.groups",
            )


def _once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Each of them, at its first place."""
    return list({id(p): p for p in parameters}.values())
