"""The interface of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mrfquant.metric import Metric


def outputs_of(forward: Callable[..., Any], inputs: Any) -> Any:
    """Return what a network makes of a batch's inputs: one argument, or a tuple or dict of them."""
    if isinstance(inputs, Mapping):
        return forward(**inputs)
    return forward(*inputs) if isinstance(inputs, tuple) else forward(inputs)


class Objective(ABC):
    """The loss that training minimises and the figures that tell how good a network is.

    Figures are made of sums over examples (hits, squared errors), so that a split can be evaluated batch by batch and
    by several processes: `sums` of the batches are added, `figures` makes percentages and means of the total.

    Attributes:
        metrics: the figures that evaluation reports; the first of them chooses the best network.
        scores: those that `score` gives.
        temperature: what the loss divides the network's outputs by, for energies that look at its curvature.
        needs_teacher: whether the network as the run starts it is a part of the loss, and has to be a trained one.
    """

    metrics: tuple[Metric, ...]
    scores: tuple[Metric, ...]
    temperature: float = 1.0
    needs_teacher: bool = False

    @property
    def primary_metric(self) -> Metric:
        """The metric that chooses the best network."""
        return self.metrics[0]

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to minimise: a mean over the batch, to call backward on."""

    def training_loss(self, outputs: Tensor, targets: Tensor, inputs: Any) -> Tensor:
        """Return `loss` for a training batch, of which the inputs are known, too."""
        return self.loss(outputs, targets)

    def attach(self, model: nn.Module) -> None:  # noqa: B027 - most objectives need nothing of it
        """Receive the network as the run starts it, before it is labelled."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs of it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - likewise
        """Go on from a state of the same objective."""

    @property
    def evaluated_as(self) -> Objective:
        """The objective by which networks are judged: another one than this only where it adds to a loss."""
        return self

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sums over a batch that `figures` needs; the last is the number of terms."""

    @abstractmethod
    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        """Return a value for the name of every metric, from the sums over all batches."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Turn outputs into something that may be averaged over several networks, such as probabilities."""

    @abstractmethod
    def score(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the figures of predictions, averaged over networks or not: a value for each name of `scores`."""
