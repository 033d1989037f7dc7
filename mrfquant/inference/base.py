"""The interface of a solver: it owns the variables, takes the loss's gradient and writes the network's weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.labelling import FlatParameters

OptimizerRecipe = Callable[[list[Tensor]], torch.optim.Optimizer]


class Inference(ABC):
    """Minimises the loss of `model` over its parameters, one step per gradient.

        loss(model(x)).backward()
        inference.step()

    A subclass writes `update` and, if what the network computes with while training is not the answer,
    `rounded`. `method` names it in results.
    """

    method: str

    def __init__(self, model: nn.Module, optimizer: OptimizerRecipe) -> None:
        self.parameters = FlatParameters({n: p for n, p in model.named_parameters() if p.requires_grad})
        self.optimizer = optimizer(self.variables())
        self._initial_rates = [group["lr"] for group in self.optimizer.param_groups]

    @abstractmethod
    def variables(self) -> list[Tensor]:
        """What the optimizer drives."""

    @abstractmethod
    def update(self) -> None:
        """Turn the gradient `parameters.g` into new weights `parameters.w`."""

    def step(self) -> None:
        """One update from the gradient that backward has left; the gradient is cleared."""
        self.update()
        self.parameters.g.zero_()

    def scale_learning_rate(self, factor: float) -> None:
        """Set every learning rate to `factor` times what the optimizer was made with."""
        for group, rate in zip(self.optimizer.param_groups, self._initial_rates, strict=True):
            group["lr"] = rate * factor

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Within the block the network computes with the answer: each labelled weight on a level."""
        yield

    def diagnostics(self) -> dict[str, float]:
        """Figures about the present state, for the collectors."""
        return {"learning_rate": self.optimizer.param_groups[0]["lr"]}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later `load_state_dict` needs to go on as if nothing had happened."""
        return {"w": self.parameters.w, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same solver on the same network."""
        self.parameters.w.copy_(state["w"])
        self.optimizer.load_state_dict(state["optimizer"])
