"""The interface of an energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from mrfquant.families import Distribution, Gradient
from mrfquant.labelling import Labelling

Term = TypeVar("Term", bound="Energy")
Distributions = Callable[[], Sequence[Distribution] | None]


class Energy(ABC):
    """E^k: a model of the expected loss around the present labelling, block by block.

    It reads what a block holds at step k, the weights w^k and the gradient g^k that backward left there. A subclass
    writes `value` and `gradient`. What it remembers from step to step goes into `state_dict`.

    Attributes:
        budget: how many steps there will be in all, None if unknown; see `prepare`.
        temperature: what the loss divides the network's outputs by; likewise.
    """

    by_weight = False  # whether it treats each weight by itself, so that parts of blocks can be handed to it
    begins: ClassVar[bool] = False  # whether `begin_step` does something
    budget: int | None = None
    temperature = 1.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.begins = cls.begin_step is not Energy.begin_step

    def prepare(self, budget: int | None, temperature: float) -> None:
        """Receive the run's budget from the solver, before its first step and when it changes."""
        self.budget, self.temperature = budget, temperature

    def attach(self, labelling: Labelling) -> None:  # noqa: B027 - most energies read blocks only
        """Receive the labelling before the first step, with the network whose parameters it has."""

    def begin_step(self, iteration: int, distributions: Distributions) -> None:  # noqa: B027 - most need one block only
        """Begin a step, when the gradients are there.

        Args:
            iteration: the number of the step.
            distributions: computes the present distribution of every block; None for a solver that has none.
        """

    @abstractmethod
    def value(self, p: Distribution) -> Tensor:
        """Return E^k of a distribution over the labels of a block: a scalar, up to a constant."""

    @abstractmethod
    def gradient(self, p: Distribution) -> Gradient:
        """Return the gradient of E^k at the present distribution over the labels of a block."""

    def values(self, p: Distribution) -> dict[str, Tensor]:
        """Return the value by the name under which it is recorded; a sum of energies has one for each of them."""
        return {type(self).__name__: self.value(p)}

    def find(self, kind: type[Term]) -> Term | None:
        """Return the energy itself if it is of a kind; a sum looks among its terms, too."""
        return self if isinstance(self, kind) else None

    def state_dict(self) -> dict[str, Any]:
        """Return what an energy with a memory needs to go on; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from a state of the same energy."""
