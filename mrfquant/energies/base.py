"""The interface of an energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor

from mrfquant.labelling import Block, Labelling

Part = TypeVar("Part", bound="Energy")


class Energy(ABC):
    """E^k(u): a model of the expected loss around the present labelling, block by block.

    It reads what the block holds at step k, the weights w^k and the gradient g^k that backward left there. A subclass
    writes `value` and `gradient`, in the forms of `mrfquant.projections`. An energy that depends on u through the
    weights alone also says so by `weight_gradient`, which makes its step faster. What it remembers from step to step
    goes into `state_dict`.

    Attributes:
        iteration: the step under way, as the solver tells it before `begin_step`.
        budget: how many steps there will be in all, None if unknown; see `prepare`.
        temperature: what the loss divides the network's outputs by; likewise.
    """

    iteration = 0
    budget: int | None = None
    temperature = 1.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for short_cut in ("weight_gradient", "label_costs"):
            if "gradient" in vars(cls) and short_cut not in vars(cls):
                setattr(cls, short_cut, getattr(Energy, short_cut))  # the parent's does not fit it

    def prepare(self, budget: int | None, temperature: float) -> None:
        """Hear about the run from the solver, before its first step and when the budget changes."""
        self.budget, self.temperature = budget, temperature

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

        It says the same as `gradient` in fewer numbers. It may be `block.g` itself: solvers may overwrite it. Where
        there are `label_costs`, it is the gradient of what remains of E^k without them, None for nothing.
        """
        return None

    def label_costs(self, block: Block) -> Tensor | None:
        """What of E^k is a cost of each label, alike for all weights of a parameter: (parts, d), a row for each part
        of the block; None if there is nothing of the kind, or if the rest of E^k is more than `weight_gradient` says.

        With it the gradient on u is that of the weights plus the costs, which takes no planes to say.
        """
        return None

    def values(self, block: Block, u: Tensor) -> dict[str, Tensor]:
        """The value by the name under which it is recorded; a sum of energies has one for each of them."""
        return {type(self).__name__: self.value(block, u)}

    def find(self, kind: type[Part]) -> Part | None:
        """The energy itself if it is of a kind; a sum looks among its energies, too."""
        return self if isinstance(self, kind) else None

    def state_dict(self) -> dict[str, Any]:
        """What an energy with a memory needs to go on; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from a state of the same energy."""
