"""The interface of an energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mrfquant.labelling import Block, Labelling
from mrfquant.projections import Projection


class Energy(ABC):
    """E^k(u): a model of the expected loss around the present labelling, block by block.

    It reads what the block holds at step k, the weights w^k and the gradient g^k that backward left there. A subclass
    writes `value` and `gradient`, in the forms of `mrfquant.projections`.
    """

    couples_blocks = False  # whether variables of different blocks interact
    temperature = 1.0  # what the loss divides the network's outputs by; the trainer sets it

    def look(self, us: Sequence[tuple[Block, Tensor]]) -> None:  # noqa: B027 - most energies need one block at a time
        """See every block with its u: before each step, if the energy couples blocks."""

    def attach(self, labelling: Labelling) -> None:  # noqa: B027 - most energies read blocks only
        """Meet the labelling before the first step, with the network whose parameters it has."""

    @abstractmethod
    def value(self, block: Block, u: Tensor) -> Tensor:
        """E^k(u), a scalar, up to a constant that does not depend on u."""

    @abstractmethod
    def gradient(self, block: Block, u: Tensor) -> Tensor:
        """The gradient of E^k with respect to u: planes (d, m), or a pair's half difference (m,); a new tensor."""

    def gradient_here(self, block: Block, u: Tensor) -> Tensor:
        """The gradient at the present u, of which the block's weights are the expectation; it may be cheaper."""
        return self.gradient(block, u)

    def pull_back(self, block: Block, u: Tensor, aux: Tensor, beta: float, projection: Projection) -> Tensor:
        """The gradient of E^k(P(beta ũ)) with respect to ũ, at u = P(beta ũ).

        It ends a step: `block.g` and, for planes, u may be overwritten.
        """
        vjp = projection.pair_vjp if block.is_pair else projection.planes_vjp
        return vjp(u, self.gradient_here(block, u), beta, aux)

    def state_dict(self) -> dict[str, Any]:
        """What an energy with a memory needs to go on; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from a state of the same energy."""
