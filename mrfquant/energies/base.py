"""The interface of an energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from mrfquant.labelling import Block, Labelling


class Energy(ABC):
    """E^k(u): a model of the expected loss around the present labelling, block by block.

    It reads what the block holds at step k, the weights w^k and the gradient g^k that backward left there. A subclass
    writes `value` and `gradient`, in the forms of `mrfquant.projections`. An energy that depends on u through the
    weights alone also says so by `weight_gradient`, which makes its step faster. What it remembers from step to step
    goes into `state_dict`.
    """

    by_weight = False  # whether it treats each weight by itself, so that parts of blocks can be handed to it
    temperature = 1.0  # what the loss divides the network's outputs by; see `Inference.prepare`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "gradient" in vars(cls) and "weight_gradient" not in vars(cls):
            cls.weight_gradient = Energy.weight_gradient  # type: ignore[method-assign]  # the parent's does not fit it
        if "gradient" in vars(cls) and "by_weight" not in vars(cls):
            cls.by_weight = False  # nor does what it says

    def attach(self, labelling: Labelling) -> None:  # noqa: B027 - most energies read blocks only
        """Meet the labelling before the first step, with the network whose parameters it has."""

    def begin_step(self, us: Iterable[tuple[Block, Tensor | None]]) -> None:  # noqa: B027 - most need one block at a time
        """Called at the start of every step, when the gradients are there, with every block and its present u.

        Args:
            us: computed as they are asked for, so an energy that does not need them pays nothing; u is None for a
                solver without a distribution over labels.
        """

    @abstractmethod
    def value(self, block: Block, u: Tensor) -> Tensor:
        """E^k(u), a scalar, up to a constant that does not depend on u."""

    @abstractmethod
    def gradient(self, block: Block, u: Tensor) -> Tensor:
        """The gradient of E^k at the present u: planes (d, m), or a pair's half difference (m,); a new tensor."""

    def weight_gradient(self, block: Block) -> Tensor | None:
        """The gradient of E^k with respect to w = u q, (m,), if it depends on u through w alone; None otherwise.

        It says the same as `gradient` in fewer numbers. It may be `block.g` itself: solvers may overwrite it.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """What an energy with a memory needs to go on; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from a state of the same energy."""
