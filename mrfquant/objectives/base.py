"""The interface of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from mrfquant.metric import Metric


class Objective(ABC):
    """The loss that training minimises and the figures that tell how good a network is.

    Figures are made of sums over examples (hits, squared errors), so that a split can be evaluated batch by batch and
    by several processes: `sums` of the batches are added, `figures` makes percentages and means of the total.

    Attributes:
        metrics: the figures that evaluation reports; the first of them chooses the best network.
        scores: those that `score` gives.
        temperature: what the loss divides the network's outputs by, for energies that look at its curvature.
    """

    metrics: tuple[Metric, ...]
    scores: tuple[Metric, ...]
    temperature: float = 1.0

    @property
    def chooses(self) -> Metric:
        """The metric that chooses the best network."""
        return self.metrics[0]

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training minimises: a mean over the batch, to call backward on."""

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What `figures` needs of a batch, as sums over its examples; the last is the number of terms."""

    @abstractmethod
    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        """A value for the name of every metric, from the sums over all batches."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """The outputs as something that may be averaged over several networks, such as probabilities."""

    @abstractmethod
    def score(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        """The figures of predictions, averaged over networks or not: a value for the name of each of `scores`."""
